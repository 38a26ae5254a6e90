"""Stores in memory that keep the contract of `programs/retrieval/base.py`, and can be told to break it.

For the tests of what lies above the stores: one that is down, slow, or forgets its filter cannot be had
from a real one at will. Search itself is simple: cosine by numpy, and shared words weighed by rarity.
"""

import copy
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.base import Kind, Match, Row, Vector
from programs.retrieval.tokens import query_terms, tokenize
from signatures.records import Passage


class _Memory:
    """What both stores share.

    Attributes:
        down: Every search raises `StoreUnavailable`.
        hangs: Seconds that every search takes; ends with `release`.
        ignores_filters: `category` has no effect.
        searches: What was searched: (kind, category).
    """

    name = "memory"

    def __init__(self, *, down: bool = False, hangs: float = 0.0, ignores_filters: bool = False) -> None:
        self.down = down
        self.hangs = hangs
        self.ignores_filters = ignores_filters
        self.searches: list[tuple[Kind, str | None]] = []
        self.release = threading.Event()
        self._rows: dict[str, Row] = {}
        self._lock = threading.Lock()

    def _candidates(self, kind: Kind, category: str | None) -> list[Row]:
        with self._lock:
            self.searches.append((kind, category))
            rows = list(self._rows.values())
        if self.hangs:
            self.release.wait(self.hangs)
        if self.down:
            raise StoreUnavailable("the store is down", store=self.name)
        filtered = category is not None and not self.ignores_filters
        return [row for row in rows if row.kind == kind and not (filtered and row.passage.category != category)]

    def delete(self, row_ids: Iterable[str]) -> None:
        with self._lock:
            for row_id in row_ids:
                self._rows.pop(row_id, None)

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def ids(self) -> set[str]:
        return set(self._rows)

    def count(self, kind: Kind | None = None) -> int:
        return sum(kind in (None, row.kind) for row in self._rows.values())

    @contextmanager
    def rebuilding(self) -> Iterator[Self]:
        fresh = copy.copy(self)
        fresh.__dict__.update({name: {} for name in ("_rows", "_vectors") if name in self.__dict__})
        yield fresh
        with self._lock:
            self.__dict__.update(
                {name: fresh.__dict__[name] for name in ("_rows", "_vectors") if name in self.__dict__}
            )

    def flush(self) -> None:
        """Nothing to do: rows are found at once."""

    def close(self) -> None:
        """Nothing to do."""


class MemoryDenseStore(_Memory):
    """A `DenseStore`."""

    def __init__(self, dimension: int, **faults: float) -> None:
        super().__init__(**faults)  # type: ignore[arg-type]
        self._dimension = dimension
        self._vectors: dict[str, Vector] = {}

    def upsert(self, rows: Sequence[Row], vectors: Vector) -> None:
        if len(rows) != len(vectors):
            raise StoreMismatch("there are not as many vectors as rows", store=self.name)
        for vector in vectors:
            self._check(vector)
        with self._lock:
            for row, vector in zip(rows, vectors, strict=True):
                self._rows[row.id], self._vectors[row.id] = row, vector

    def search(self, vector: Vector, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        self._check(vector)
        rows = self._candidates(kind, category)
        matches = [Match(row.id, row.passage, float(self._vectors[row.id] @ vector)) for row in rows]
        return sorted(matches, key=lambda match: (-match.score, match.row_id))[:top_k]

    def read(self, row_ids: Sequence[str]) -> tuple[list[Row], Vector]:
        with self._lock:
            rows = [self._rows[row_id] for row_id in dict.fromkeys(row_ids) if row_id in self._rows]
            vectors = np.array([self._vectors[row.id] for row in rows], dtype=np.float32)
        return rows, vectors.reshape(len(rows), self._dimension)

    def _check(self, vector: Vector) -> None:
        if vector.shape != (self._dimension,) or not np.isfinite(vector).all() or not vector.any():
            raise StoreMismatch("a vector is wrong", store=self.name)


class MemoryTextStore(_Memory):
    """A `TextStore`."""

    def upsert(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self._rows.update({row.id: row for row in rows})

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        rows = self._candidates(kind, category)
        words = {row.id: set(tokenize(row.text)) for row in rows}
        spread = Counter(word for found in words.values() for word in found)
        wanted = set(query_terms(query))
        matches = []
        for row in rows:
            shared = wanted & words[row.id]
            if shared:
                score = sum(math.log(1 + len(rows) / spread[word]) for word in shared)
                matches.append(Match(row.id, row.passage, score))
        return sorted(matches, key=lambda match: (-match.score, match.row_id))[:top_k]


class EndlessTextStore(MemoryTextStore):
    """A `TextStore` in which every other query finds one passage more, as it does in a large knowledge base."""

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        found = super().search(query, top_k=top_k, kind=kind, category=category)
        digest = hashlib.sha256(query.encode()).hexdigest()[:8]
        more = Passage(
            id=f"more-{digest}",
            document_id="more.md",
            category=category or "",
            text=f"七天无理由退货，运费由买家承担（{digest}）。",
        )
        best = found[0].score if found else 1.0
        return [Match(more.id, more, best + 1.0), *found][:top_k]
