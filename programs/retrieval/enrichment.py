"""What was written about passages at index time: questions that each answers, and a summary of it.

Kept apart from the stores, by the passage's content and the language model that wrote it: a rebuild, a
moved folder or another store costs no call again. A folder may bring what was written for it, in a file
`enrichment.jsonl` at its top, which `adaptive-rag index` takes over.
"""

import hashlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from programs.errors import DocumentError, StoreUnavailable
from programs.retrieval.base import Row
from programs.retrieval.chunking import embedded_text
from signatures.records import Passage

FILE_NAME = "enrichment.jsonl"
WRITTEN = "written"
"""The model of what people wrote."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS enrichments (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    questions TEXT NOT NULL,
    summary TEXT NOT NULL,
    UNIQUE (key, model)
);
CREATE TABLE IF NOT EXISTS revision (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL);
"""


class Enrichment(BaseModel):
    """What was written about one passage.

    Attributes:
        key: `enrichment_key` of the passage.
        model: Who wrote it: the label of a language model, or `WRITTEN`.
        questions: Questions that the passage answers; may be empty.
        summary: One sentence; "" for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    model: str = Field(min_length=1)
    # Stores limit the length of a text; a question of a page is none.
    questions: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=20)
    summary: str = Field(default="", max_length=2000)


def enrichment_key(passage: Passage) -> str:
    """SHA-256 of heading and text: equal passages of two documents share what was written."""
    return hashlib.sha256(embedded_text(passage).encode("utf-8", "replace")).hexdigest()


def enriched_rows(passage: Passage, enrichment: Enrichment | None) -> list[Row]:
    """Rows of the questions and the summary of a passage.

    Their ids end in a digest of their text, so that other words are another row.
    """
    if enrichment is None:
        return []
    questions = dict.fromkeys(question.strip() for question in enrichment.questions)
    rows = [Row(f"{passage.id}?{_digest(text)}", "question", text, passage) for text in questions if text]
    if summary := enrichment.summary.strip():
        rows.append(Row(f"{passage.id}~{_digest(summary)}", "summary", summary, passage))
    return rows


def read_enrichments(path: Path) -> list[Enrichment]:
    """The records of a file, one JSON object a line.

    Raises:
        DocumentError: A line is none; the message names it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(Enrichment.model_validate_json(line))
        except ValidationError as error:
            reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise DocumentError(f"line {number} is no enrichment: {reasons}", path=str(path)) from error
    return found


def write_enrichments(path: Path, enrichments: Iterable[Enrichment]) -> None:
    """Write records into a file that `read_enrichments` reads; it is written whole or not at all.

    Raises:
        DocumentError: The file cannot be written.
    """
    lines = (json.dumps(one.model_dump(mode="json"), ensure_ascii=False) + "\n" for one in enrichments)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        fresh.write_text("".join(lines), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise DocumentError(f"cannot be written: {error.strerror}", path=str(path)) from error


class EnrichmentCache:
    """All enrichments of this machine, in one SQLite file that is made at the first write.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    @property
    def revision(self) -> str:
        """Changes with every change of the contents; "" while there is none."""
        if not self._path.exists():
            return ""
        with self._open() as database:
            found = database.execute("SELECT value FROM revision").fetchone()
        return found[0] if found else ""

    def add(self, enrichments: Iterable[Enrichment]) -> int:
        """Keep enrichments; gives how many were new or other than before.

        The one that was added or changed last for a passage is the one that `newest` gives.
        """
        with self._open() as database:
            changed = 0
            for one in enrichments:
                questions = json.dumps(one.questions, ensure_ascii=False)
                cursor = database.execute(
                    "DELETE FROM enrichments WHERE key = ? AND model = ? AND (questions != ? OR summary != ?)",
                    (one.key, one.model, questions, one.summary),
                )
                cursor = database.execute(
                    "INSERT OR IGNORE INTO enrichments (key, model, questions, summary) VALUES (?, ?, ?, ?)",
                    (one.key, one.model, questions, one.summary),
                )
                changed += cursor.rowcount
            if changed:
                database.execute("INSERT OR REPLACE INTO revision VALUES (1, ?)", (uuid.uuid4().hex[:12],))
        return changed

    def newest(self, keys: Sequence[str]) -> dict[str, Enrichment]:
        """What is known about passages, by key; of several models the latest."""
        if not self._path.exists():
            return {}
        found: dict[str, Enrichment] = {}
        with self._open() as database:
            for start in range(0, len(keys), 500):  # SQLite limits the variables of a statement
                part = keys[start : start + 500]
                marks = ",".join("?" * len(part))
                rows = database.execute(
                    f"SELECT key, model, questions, summary FROM enrichments WHERE key IN ({marks}) ORDER BY number",
                    part,
                )
                found.update({row[0]: _record(row) for row in rows})
        return found

    def by_model(self, model: str) -> set[str]:
        """Keys of the passages about which a model has written."""
        if not self._path.exists():
            return set()
        with self._open() as database:
            return {key for (key,) in database.execute("SELECT key FROM enrichments WHERE model = ?", (model,))}

    def all(self) -> list[Enrichment]:
        """Everything, oldest first."""
        if not self._path.exists():
            return []
        with self._open() as database:
            rows = database.execute("SELECT key, model, questions, summary FROM enrichments ORDER BY number")
            return [_record(row) for row in rows]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # Opened for each use: a process that was forked or killed leaves nothing behind.
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(self._path, timeout=10.0)
                try:
                    with database:
                        database.executescript(_SCHEMA)
                        yield database
                finally:
                    database.close()
            except sqlite3.Error as error:
                raise StoreUnavailable(
                    f"The enrichments ({self._path}) cannot be used: {error}",
                    store="enrichment",
                    hint="Delete the file; what a language model wrote must then be written again.",
                ) from error


def _record(row: Sequence[str]) -> Enrichment:
    return Enrichment(key=row[0], model=row[1], questions=tuple(json.loads(row[2])), summary=row[3])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
