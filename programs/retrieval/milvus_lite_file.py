"""A Milvus Lite file (in truth a folder): shared within a process, locked against other processes.

milvus-lite runs one server per file inside the process and stops it only when the process ends.
Here the last store that closes stops it, so that the lock goes with it. A note beside the file says
which process holds it, as the lock itself does not.
"""

import json
import os
import sys
import threading
from datetime import datetime
from pathlib import Path

from programs.errors import StoreError, StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval.milvus_rows import NAME

_guard = threading.Lock()
_open: dict[Path, "LiteFile"] = {}


class LiteFile:
    """An open file; get one with `join`.

    Attributes:
        path: Absolute path.
        lock: Held while writing: the engine takes one writer at a time.
        starting: Held while a client is made, as two that start at once would lock each other out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.starting = threading.Lock()
        self.users = 0
        self.signed = False

    @property
    def note(self) -> Path:
        """The file that names the holder."""
        return self.path.with_name(f"{self.path.name}.holder.json")

    def sign(self) -> None:
        """Write down that this process holds the file."""
        holder = {
            "pid": os.getpid(),
            "program": Path(sys.argv[0]).name,  # not its arguments: they may hold a question or a secret
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        self.note.write_text(json.dumps(holder), encoding="utf-8")
        self.signed = True

    def holder(self) -> str:
        """Who holds the file, for a message."""
        try:
            found = json.loads(self.note.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} ({found['program']}, since {found['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


def join(path: Path) -> LiteFile:
    """The file at `path` for one more store of this process; to be given back with `leave`."""
    path = Path(os.path.abspath(path))
    with _guard:
        file = _open.setdefault(path, LiteFile(path))
        file.users += 1
        return file


def leave(file: LiteFile) -> None:
    """One store less; after the last one the engine stops and the lock is released."""
    with _guard:
        file.users -= 1
        if file.users > 0:
            return
        _open.pop(file.path, None)
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(str(file.path))
        if file.signed:
            file.note.unlink(missing_ok=True)


def drop_indexes(file: LiteFile) -> None:
    """Remove all vector indexes. They are made from the vectors, and made anew when they are missing."""
    with file.lock:
        for index in file.path.rglob("*.idx"):
            index.unlink(missing_ok=True)


def why_closed(file: LiteFile) -> StoreError:
    """Why the file could not be opened; pymilvus only says that it could not."""
    from milvus_lite.db import MilvusLite
    from milvus_lite.exceptions import DataDirLockedError, MilvusLiteError

    try:
        MilvusLite(str(file.path)).close()
    except DataDirLockedError:
        return StoreLocked(
            f"The Milvus Lite file {file.path} is held by {file.holder()}.",
            store=NAME,
            hint="End that process first. For several processes at once use a Milvus server (http://host:19530).",
        )
    except (NotADirectoryError, FileExistsError):
        return StoreMismatch(
            f"{file.path} is not a Milvus Lite folder; versions before 3 wrote a single file.",
            store=NAME,
            hint="Choose another path and index the documents again.",
        )
    except MilvusLiteError as error:
        return StoreMismatch(
            f"The Milvus Lite file {file.path} is damaged: {error}",
            store=NAME,
            hint="Delete it and index the documents again.",
        )
    except OSError as error:
        return StoreUnavailable(f"The Milvus Lite file {file.path} cannot be opened: {error}", store=NAME)
    return StoreUnavailable(f"The Milvus Lite file {file.path} could not be opened just now.", store=NAME)
