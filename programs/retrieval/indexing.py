"""From files to both stores, so that a crash at any moment leaves no half document and no doubles.

For each batch of documents: record the new rows -> write them to both stores -> record that they are
whole -> remove the old ones -> settle. `catalog` says what each state means after a crash.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from programs.errors import DocumentError, StoreMismatch
from programs.retrieval import chunking, tokens
from programs.retrieval.base import DenseStore, Embedder, Row, TextStore
from programs.retrieval.catalog import Catalog, Entry
from programs.retrieval.chunking import CountTokens, embedded_text, split_file
from programs.retrieval.index_report import IndexReport
from programs.retrieval.plan import Index
from programs.retrieval.reading import DOCUMENT_SUFFIXES
from signatures.records import Passage

BATCH_PASSAGES = 256
"""Passages that are embedded and written together: large enough that the embedder, not the stores'
flushing, takes the time; small enough that an interrupted run loses seconds of work."""
MAX_PASSAGE_BYTES = 60_000
"""Of the text of one passage: stores limit a field to 65,535 bytes, and a server counts bytes."""

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Splitter:
    """How files of an index become passages.

    Attributes:
        suffixes: Files that it reads, with the dot.
        split: Path, document id, category for documents that name none, the embedder's counting
            and limit; gives the passages.
        version: Changes when it cuts otherwise.
    """

    suffixes: frozenset[str]
    split: Callable[[Path, str, str | None, CountTokens, int], list[Passage]]
    version: str


def _split_document(
    path: Path, document_id: str, category: str | None, count_tokens: CountTokens, max_tokens: int
) -> list[Passage]:
    return split_file(path, document_id, category=category, count_tokens=count_tokens, max_tokens=max_tokens)


DOCUMENTS = Splitter(DOCUMENT_SUFFIXES, _split_document, f"documents-{chunking.VERSION}")


@dataclass(frozen=True, slots=True)
class _Document:
    id: str
    source: Path
    hash: str
    passages: Sequence[Passage]


class Indexer:
    """Writes one index. The caller sees to it that there is one at a time.

    Args:
        catalog: The catalogue.
        dense: Dense store of the index.
        text: Text store of the index.
        embedder: Makes the vectors.
        index: Name of the index.
        splitter: How files become passages.

    Raises:
        StoreMismatch: From every method that writes, when the index was made with another embedder.
    """

    def __init__(
        self,
        catalog: Catalog,
        dense: DenseStore,
        text: TextStore,
        embedder: Embedder,
        *,
        index: Index = "documents",
        splitter: Splitter = DOCUMENTS,
    ) -> None:
        self._catalog = catalog
        self._dense = dense
        self._text = text
        self._embedder = embedder
        self._index: Index = index
        self._splitter = splitter

    def index_paths(
        self,
        paths: Sequence[Path],
        *,
        category: str | None = None,
        prune: bool = False,
        on_progress: ProgressCallback | None = None,
    ) -> IndexReport:
        """Bring the index up to date with files and folders.

        Args:
            paths: Files and folders; in folders, files with a known suffix at any depth.
            category: For documents that name none.
            prune: Also remove documents whose file is gone from a given folder.
            on_progress: Told name of the step, documents done and documents in all.
        """
        self.recover()
        self._check_facts()
        started = time.monotonic()
        report = IndexReport()
        known = self._catalog.entries(self._index)
        files = dict(self._files(paths, report))
        batch: list[_Document] = []
        for number, (document_id, path) in enumerate(files.items(), start=1):
            entry = known.get(document_id)
            document = self._read(document_id, path, category, entry, report)
            if document is not None:
                batch.append(document)
                (report.changed if entry is not None else report.added).append(document_id)
            if batch and (sum(len(d.passages) for d in batch) >= BATCH_PASSAGES or number == len(files)):
                self._write(batch, known, report)
                batch = []
            if on_progress is not None:
                on_progress("索引", number, len(files))
        if batch:
            self._write(batch, known, report)
        if prune:
            gone = [d for d in known if d not in files and any(_below(d, known[d].source, path) for path in paths)]
            self._remove(gone, known)
            report.removed += gone
        report.seconds = time.monotonic() - started
        return report

    def delete(self, paths: Sequence[Path]) -> IndexReport:
        """Remove the documents that came from files or folders, whether these still exist or not."""
        self.recover()
        started = time.monotonic()
        known = self._catalog.entries(self._index)
        wanted = [d for d, entry in known.items() if any(_below(d, entry.source, path) for path in paths)]
        self._remove(wanted, known)
        return IndexReport(removed=wanted, seconds=time.monotonic() - started)

    def rebuild(
        self, paths: Sequence[Path], *, category: str | None = None, on_progress: ProgressCallback | None = None
    ) -> IndexReport:
        """Empty the index, also one that was made with another embedder, and read the files again."""
        self._dense.clear()
        self._text.clear()
        self._catalog.forget(self._index)
        return self.index_paths(paths, category=category, on_progress=on_progress)

    def recover(self) -> int:
        """Undo or finish what a crash left half done; gives the number of documents."""
        unsettled = self._catalog.entries(self._index, unsettled=True)
        if not unsettled:
            return 0
        doomed: list[str] = []
        settled: list[Entry] = []
        for entry in unsettled.values():
            old, new = set(entry.rows), set(entry.new_rows)
            match entry.state:
                case "writing":
                    doomed += new - old
                    settled.append(Entry(entry.document_id, entry.source, "ready", entry.hash, entry.rows))
                case "replacing":
                    doomed += old - new
                    settled.append(Entry(entry.document_id, entry.source, "ready", entry.new_hash, entry.new_rows))
                case "deleting":
                    doomed += old | new
        self._drop_rows(doomed)
        self._catalog.settle(self._index, [entry for entry in settled if entry.rows])
        self._catalog.forget(self._index, set(unsettled) - {entry.document_id for entry in settled if entry.rows})
        return len(unsettled)

    def _read(
        self, document_id: str, path: Path, category: str | None, entry: Entry | None, report: IndexReport
    ) -> _Document | None:
        try:
            digest = _content_hash(path, category)
            if entry is not None and entry.hash == digest:
                report.unchanged.append(document_id)
                return None
            passages = self._splitter.split(
                path, document_id, category, self._embedder.count_tokens, self._embedder.max_tokens
            )
        except DocumentError as error:
            report.failed[str(path)] = error.message
            return None
        if not passages:
            report.failed[str(path)] = "holds no text"
            return None
        if any(len(passage.text.encode()) > MAX_PASSAGE_BYTES for passage in passages):
            report.failed[str(path)] = f"has a passage of more than {MAX_PASSAGE_BYTES} bytes that cannot be split"
            return None
        return _Document(document_id, path, digest, passages)

    def _write(self, batch: Sequence[_Document], known: Mapping[str, Entry], report: IndexReport) -> None:
        changes, rows = [], []
        for document in batch:
            old = known.get(document.id)
            own = [Row(p.id, "passage", embedded_text(p), p) for p in document.passages]
            rows += own
            changes.append(
                Entry(
                    document.id,
                    str(document.source.resolve()),
                    "writing",
                    old.hash if old else "",
                    old.rows if old else (),
                    document.hash,
                    tuple(row.id for row in own),
                )
            )
        started = time.monotonic()
        vectors = self._embedder.encode_document([row.text for row in rows])
        report.embedding_seconds += time.monotonic() - started
        self._catalog.begin(self._index, changes)
        self._dense.upsert(rows, vectors)
        self._text.upsert(rows)
        self._dense.flush()
        self._text.flush()
        self._catalog.advance(self._index, [entry.document_id for entry in changes], "replacing")
        self._drop_rows(row for entry in changes for row in set(entry.rows) - set(entry.new_rows))
        ready = [Entry(e.document_id, e.source, "ready", e.new_hash, e.new_rows) for e in changes]
        self._catalog.settle(self._index, ready)
        report.passages += len(rows)

    def _remove(self, document_ids: Sequence[str], known: Mapping[str, Entry]) -> None:
        self._catalog.advance(self._index, document_ids, "deleting")
        self._drop_rows(row for document_id in document_ids for row in known[document_id].rows)
        self._catalog.forget(self._index, document_ids)

    def _drop_rows(self, row_ids: Iterable[str]) -> None:
        doomed = list(row_ids)
        if doomed:
            self._dense.delete(doomed)
            self._text.delete(doomed)
            self._dense.flush()
            self._text.flush()

    def _check_facts(self) -> None:
        wanted = {
            "embedder": self._embedder.name,
            "dimension": str(self._embedder.dimension),
            "splitter": self._splitter.version,
            "tokens": str(tokens.VERSION),
        }
        found = self._catalog.facts(self._index)
        if not found:
            self._catalog.set_facts(self._index, wanted)
            return
        differing = [f"{key} {found.get(key)!r}, now {new!r}" for key, new in wanted.items() if found.get(key) != new]
        if differing:
            raise StoreMismatch(
                f"The index {self._index!r} was made with other settings: {'; '.join(differing)}.",
                store="catalog",
                hint="adaptive-rag index --rebuild PATH… reads the files again.",
            )

    def _files(self, paths: Sequence[Path], report: IndexReport) -> Iterator[tuple[str, Path]]:
        """Document id and path of every file; a file given by name is read whatever its suffix."""
        for path in paths:
            path = path.resolve()
            if path.is_file():
                yield f"{path.parent.name}/{path.name}", path
            elif path.is_dir():
                for file in sorted(path.rglob("*")):
                    inside = file.relative_to(path)
                    hidden = any(part.startswith(".") for part in inside.parts)
                    if file.is_file() and not hidden and file.suffix.lower() in self._splitter.suffixes:
                        yield f"{path.name}/{inside.as_posix()}", file
            else:
                report.failed[str(path)] = "no such file or folder"


def _content_hash(path: Path, category: str | None) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}", path=str(path)) from error
    return hashlib.sha256(data + f"\0{category or ''}".encode()).hexdigest()


def _below(document_id: str, source: str, path: Path) -> bool:
    """Whether a document came from `path` or from below it, or has this id."""
    resolved = path.resolve()
    return Path(source) == resolved or resolved in Path(source).parents or document_id == path.as_posix()
