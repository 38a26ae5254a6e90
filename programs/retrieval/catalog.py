"""What is indexed: each document, its content hash and its rows, and how far a change has come.

Two stores cannot change at one moment. The catalogue makes a change of both safe against a crash: it
records what will be written before anything is written, and what will be removed before anything is
removed. States of a document:

    ready      both stores hold exactly `rows`
    writing    `rows` are whole, `new_rows` may be there in part     -> undone by removing the new ones
    replacing  `new_rows` are whole, the others of `rows` may be     -> finished by removing the others
               gone in part
    deleting   `rows` may be gone in part                            -> finished by removing the rest

A crash between any two statements leaves one of these, and `recovery.recover` settles it. An index
that is being emptied is marked as such, with no document left, until both stores are empty. One that is
being rebuilt lies beside the old one under another name; it is marked from when the stores change over,
one after the other, until its documents take the place of the old ones.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.plan import Index

SCHEMA_VERSION = 1
"""To be raised when the tables change."""

State = Literal["ready", "writing", "replacing", "deleting"]
_EMPTYING = "emptying"
_SWITCHING = "switching"
_SCHEMA = f"""
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE IF NOT EXISTS documents (
    index_name TEXT NOT NULL,
    document_id TEXT NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL,
    hash TEXT NOT NULL,
    rows TEXT NOT NULL,
    new_hash TEXT NOT NULL,
    new_rows TEXT NOT NULL,
    PRIMARY KEY (index_name, document_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (
    index_name TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (index_name, name)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One document.

    Attributes:
        document_id: Its id.
        source: Absolute path of the file it came from.
        state: See the module's text.
        hash: SHA-256 of the content that `rows` stand for; "" when there was none, or when the file
            must be read again whatever is in it.
        rows: Ids of the rows of that content.
        new_hash: Of the content that is being written.
        new_rows: Its rows.
    """

    document_id: str
    source: str
    state: State
    hash: str
    rows: tuple[str, ...]
    new_hash: str = ""
    new_rows: tuple[str, ...] = ()


def rebuilt(index: Index) -> Index:
    """The name of what takes the place of an index."""
    return cast("Index", f"{index}+new")


class Catalog:
    """The catalogue of all indexes, in one SQLite file.

    Args:
        path: The file; made where it is missing.

    Raises:
        StoreUnavailable: It cannot be opened, or is no catalogue.
        StoreMismatch: It is of a newer version of this program.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=10.0, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            # A power cut must not forget a state that the stores have already moved beyond.
            self._database.execute("PRAGMA synchronous=FULL")
            found = self._database.execute("PRAGMA user_version").fetchone()[0]
            if found <= SCHEMA_VERSION:
                self._database.executescript(_SCHEMA)
        if found > SCHEMA_VERSION:
            self.close()
            raise StoreMismatch(
                f"The catalogue {path} is of a newer version of this program.",
                store="catalog",
                hint="Update the program, or set ADAPTIVE_RAG_HOME to another folder and index again.",
            )

    def entries(self, index: Index, *, unsettled: bool = False) -> dict[str, Entry]:
        """Documents of an index by id; only those that are not `ready` where `unsettled`."""
        condition = " AND state != 'ready'" if unsettled else ""
        query = (
            "SELECT document_id, source, state, hash, rows, new_hash, new_rows FROM documents"
            f" WHERE index_name = ?{condition} ORDER BY document_id"
        )
        with self._translated():
            found = self._database.execute(query, (index,)).fetchall()
        return {
            row[0]: Entry(row[0], row[1], row[2], row[3], tuple(json.loads(row[4])), row[5], tuple(json.loads(row[6])))
            for row in found
        }

    def pending(self, index: Index) -> bool:
        """Whether a change was begun and not ended."""
        return self.emptying(index) or self.switching(index) or bool(self.entries(index, unsettled=True))

    def emptying(self, index: Index) -> bool:
        """Whether the index was to be emptied and the stores may still hold rows."""
        return _EMPTYING in self.facts(index)

    def switching(self, index: Index) -> bool:
        """Whether the stores were to change over to a rebuilt index, and each of them may have done so."""
        return _SWITCHING in self.facts(index)

    def count(self, index: Index) -> int:
        """Number of rows that the documents of an index have, with those of unsettled ones."""
        query = "SELECT COALESCE(SUM(json_array_length(rows)), 0) FROM documents WHERE index_name = ?"
        with self._translated():
            return int(self._database.execute(query, (index,)).fetchone()[0])

    def begin(self, index: Index, changes: Sequence[Entry]) -> None:
        """Before any row is written: documents in state `writing`, with their new rows."""
        with self._transaction():
            for entry in changes:
                self._put(index, entry)

    def advance(self, index: Index, document_ids: Iterable[str], state: State) -> None:
        """Move documents to another state."""
        with self._transaction():
            self._database.executemany(
                "UPDATE documents SET state = ? WHERE index_name = ? AND document_id = ?",
                [(state, index, document_id) for document_id in document_ids],
            )

    def settle(self, index: Index, entries: Iterable[Entry], gone: Iterable[str] = ()) -> None:
        """After both stores are as wanted: the documents as they now are, and the ids of those that are no more."""
        with self._transaction():
            for entry in entries:
                self._put(index, entry)
            self._database.executemany(
                "DELETE FROM documents WHERE index_name = ? AND document_id = ?",
                [(index, document_id) for document_id in gone],
            )

    def begin_emptying(self, index: Index) -> None:
        """Before both stores are cleared: no document any more, and the mark that says so."""
        with self._transaction():
            self._forget(index)
            self._database.execute("INSERT INTO facts VALUES (?, ?, '')", (index, _EMPTYING))

    def end_emptying(self, index: Index) -> None:
        """After both stores were cleared."""
        with self._transaction():
            self._database.execute("DELETE FROM facts WHERE index_name = ? AND name = ?", (index, _EMPTYING))

    def begin_rebuilding(self, index: Index) -> Index:
        """The name under which the documents of a rebuilt index are recorded, with none left there."""
        fresh = rebuilt(index)
        with self._transaction():
            self._forget(fresh)
            if self.switching(index):
                self._distrust(index)
        return fresh

    def begin_switching(self, index: Index) -> None:
        """Before the stores change over."""
        self.set_facts(index, {_SWITCHING: ""})

    def end_rebuilding(self, index: Index) -> None:
        """After both stores have changed over: the rebuilt documents take the place of the old ones."""
        with self._transaction():
            self._replace(index)

    def settle_rebuilding(self, index: Index, *, rebuilt_rows: bool) -> None:
        """After a crash while the stores changed over: all files of an index must be read again.

        Args:
            index: The index.
            rebuilt_rows: Whether the documents are those of the rebuilt index.
        """
        with self._transaction():
            if rebuilt_rows:
                self._replace(index)
            self._distrust(index)
            self._forget(rebuilt(index))

    def _replace(self, index: Index) -> None:
        self._forget(index)
        for table in ("documents", "facts"):
            self._database.execute(f"UPDATE {table} SET index_name = ? WHERE index_name = ?", (index, rebuilt(index)))

    def _forget(self, index: Index) -> None:
        for table in ("documents", "facts"):
            self._database.execute(f"DELETE FROM {table} WHERE index_name = ?", (index,))

    def _distrust(self, index: Index) -> None:
        self._database.execute("UPDATE documents SET hash = '', new_hash = '' WHERE index_name = ?", (index,))
        self._database.execute("DELETE FROM facts WHERE index_name = ? AND name = ?", (index, _SWITCHING))

    def facts(self, index: Index) -> dict[str, str]:
        """What the rows of an index were made with, such as the embedder; {} for a new index."""
        with self._translated():
            found = self._database.execute("SELECT name, value FROM facts WHERE index_name = ?", (index,)).fetchall()
        return dict(found)

    def set_facts(self, index: Index, facts: Mapping[str, str]) -> None:
        """Record what the rows of an index are made with."""
        with self._transaction():
            self._database.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)",
                [(index, name, value) for name, value in facts.items()],
            )

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._database.close()

    def _put(self, index: Index, entry: Entry) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                index,
                entry.document_id,
                entry.source,
                entry.state,
                entry.hash,
                json.dumps(entry.rows),
                entry.new_hash,
                json.dumps(entry.new_rows),
            ),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:  # also an interrupt must not leave a transaction open; it goes on from here
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(
                f"The catalogue {self._path} cannot be used: {error}",
                store="catalog",
                hint="Is the disk full, or the folder read-only? A damaged file can be deleted; then index again.",
            ) from error
