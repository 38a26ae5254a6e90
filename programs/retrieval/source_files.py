"""Which files are meant, and which document each of them is."""

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from programs.errors import DocumentError
from programs.retrieval.catalog import Entry


def find_files(
    paths: Sequence[Path], *, suffixes: Collection[str], known: Mapping[str, Entry], failed: dict[str, str]
) -> dict[str, Path]:
    """The files behind paths, by document id.

    The id is the path below the given folder with that folder's name first, for a file given by name its
    name behind its folder's. A file that is a document already keeps its id, however it is given.

    Args:
        paths: Files, of any suffix, and folders, of which files with a known suffix at any depth are
            taken; hidden ones are left out.
        suffixes: Known suffixes, in small letters, with the dot.
        known: The documents of the index.
        failed: Takes the reasons by path: what is missing, and what would share an id with another file.
    """
    ids = {entry.source: document_id for document_id, entry in known.items()}
    files: dict[str, Path] = {}
    seen: set[Path] = set()
    for given in paths:
        base = given.resolve()
        if not os.path.exists(base):
            failed[shown(given)] = "no such file or folder"
            continue
        for document_id, file in _below(base, suffixes, failed):
            if file in seen:
                continue
            seen.add(file)
            document_id = ids.get(str(file), document_id)
            if shown(document_id) != document_id:
                failed[shown(file)] = "has a name that is not valid Unicode; rename it"
            elif document_id in files:
                failed[shown(file)] = f"would be the same document as {files[document_id]}; rename one of the folders"
            else:
                files[document_id] = file
    return files


def _below(base: Path, suffixes: Collection[str], failed: dict[str, str]) -> Iterator[tuple[str, Path]]:
    if base.is_file():
        yield f"{base.parent.name}/{base.name}", base
        return

    def closed(error: OSError) -> None:
        failed[shown(error.filename)] = f"cannot be read: {error.strerror}"

    for folder, folders, names in os.walk(base, onerror=closed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            # A link to nothing and a pipe are no documents.
            if not name.startswith(".") and file.suffix.lower() in suffixes and os.path.isfile(file):
                yield f"{base.name}/{file.relative_to(base).as_posix()}", file


def content_hash(path: Path, *settings: str) -> str:
    """Digest of a file and of the settings under which it is read.

    Raises:
        DocumentError: It cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {error.strerror}", path=str(path), hint="Check that it is there and may be read."
        ) from error
    return hashlib.sha256("\0".join(["", *settings]).encode("utf-8", "replace") + data).hexdigest()


def came_from(entry: Entry, path: Path) -> bool:
    """Whether a document is `path` or lies below it, or has this id."""
    resolved, source = path.resolve(), Path(entry.source)
    return source == resolved or resolved in source.parents or entry.document_id == path.as_posix()


def is_elsewhere(entry: Entry, path: Path) -> bool:
    """Whether a document came from another file than `path`, which still exists."""
    return entry.source != str(path) and not is_gone(entry) and Path(entry.source).resolve() != path.resolve()


def is_gone(entry: Entry) -> bool:
    """Whether the file of a document does not exist; one that merely cannot be looked at does."""
    try:
        os.stat(entry.source)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def shown(path: Path | str) -> str:
    """A path that can be printed and stored, also where a name is no Unicode."""
    return os.fspath(path).encode("utf-8", "replace").decode()


def content_part(digest: str) -> str:
    """The part of a document's hash in the catalogue that stands for its file; the rest is for enrichments."""
    return digest.partition("+")[0]
