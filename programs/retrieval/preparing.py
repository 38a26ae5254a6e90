"""From a file to rows with vectors: what can be done for each document alone, here or in another process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from programs.errors import DocumentError
from programs.retrieval.base import Embedder, Row, Vector
from programs.retrieval.chunking import MAX_PASSAGE_TOKENS, CountTokens, embedded_text
from programs.retrieval.enrichment import Enrichment, enriched_rows, enrichment_key
from signatures.records import Passage

EMBEDDED_PASSAGES = 64
"""Passages of one call of the embedder; between two calls a query of another thread gets its turn."""
MAX_PASSAGE_BYTES = 60_000
"""Of the text of one passage: stores limit a field to 65,535 bytes, and a server counts bytes."""


@dataclass(frozen=True, slots=True)
class Splitter:
    """How files of an index become passages.

    Attributes:
        suffixes: Files that it reads, with the dot.
        split: Path, document id, category for documents that name none, the embedder's counting
            and the most tokens of a passage with its heading; gives the passages.
        version: Changes when it cuts otherwise; files are then read again.
    """

    suffixes: frozenset[str]
    split: Callable[[Path, str, str | None, CountTokens, int], list[Passage]]
    version: str


@dataclass(frozen=True, slots=True)
class Task:
    """A document that must be read.

    Attributes:
        document_id: Its id.
        path: Its file.
        category: For a document that names none.
        rows: Ids of its rows, where its content is what it was; it is embedded only if they change.
        digest: What its hash will be.
    """

    document_id: str
    path: str
    category: str | None
    rows: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document that was read.

    Attributes:
        task: What was asked.
        rows: Its rows.
        vectors: Of the rows; None where these are those of the task.
        truncated: Ids of rows that the embedder does not see whole.
        seconds: In the embedder.
        failed: Why it could not be read; "" otherwise.
    """

    task: Task
    rows: Sequence[Row] = ()
    vectors: Vector | None = None
    truncated: Sequence[str] = ()
    seconds: float = 0.0
    failed: str = ""


class Workers(Protocol):
    """Reads, cuts and embeds documents in other processes."""

    def prepare(self, tasks: Sequence[Task], enrichments: Mapping[str, Enrichment]) -> Iterator[Prepared]:
        """One result for each task, in any order.

        Args:
            tasks: The documents.
            enrichments: What was written about passages, by key.
        """
        ...


def split(splitter: Splitter, embedder: Embedder, document_id: str, path: Path, category: str | None) -> list[Passage]:
    """The passages of a file.

    Raises:
        DocumentError: It cannot be read, or holds nothing that can be indexed.
    """
    limit = min(embedder.max_tokens, MAX_PASSAGE_TOKENS)
    passages = splitter.split(path, document_id, category, embedder.count_tokens, limit)
    if not passages:
        raise DocumentError("holds no text", path=str(path))
    if any(len(passage.text.encode()) > MAX_PASSAGE_BYTES for passage in passages):
        raise DocumentError(
            f"has a line of more than {MAX_PASSAGE_BYTES} bytes", path=str(path), hint="break it, or leave it out"
        )
    return passages


def rows_of(passages: Sequence[Passage], enrichments: Mapping[str, Enrichment]) -> list[Row]:
    """The rows of passages, with what was written about them."""
    rows: list[Row] = []
    for passage in passages:
        rows.append(Row(passage.id, "passage", embedded_text(passage), passage))
        rows += enriched_rows(passage, enrichments.get(enrichment_key(passage)) if enrichments else None)
    return rows


def embedded(rows: Sequence[Row], embedder: Embedder) -> Vector:
    """The vectors of rows, shape (n, dimension)."""
    texts = [row.text for row in rows]
    slices = [texts[start : start + EMBEDDED_PASSAGES] for start in range(0, len(texts), EMBEDDED_PASSAGES)]
    return np.concatenate([embedder.encode_document(part) for part in slices])


def reason(error: DocumentError) -> str:
    """Why a file could not be read, and what to do, in one line."""
    return f"{error.message} ({error.hint})" if error.hint else error.message
