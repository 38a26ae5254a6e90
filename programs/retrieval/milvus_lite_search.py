"""Milvus Lite, quick also with many rows: which rows count is worked out once, not at every search.

milvus-lite 3.2.2 goes through all keys of a collection in a Python loop at every search, to leave out
rows that were written again or deleted since: nine tenths of a search of 100,000 rows. The outcome only
changes with a flush, so here it is remembered. The nearest rows of each part of the file are found
first, by the part's own index, and the engine does with them what it always does.

Anything but one vector over flushed and indexed rows goes the engine's own way, and so does everything in
another version of milvus-lite: this reaches into the engine, and only this version was tested.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

TESTED = "3.2.2"
_MOST_STATES = 8  # one for each open collection that was searched lately

Mask = NDArray[np.bool_]
Search = Callable[..., list[list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class _State:
    """Which rows count, in one state of a file.

    Attributes:
        parts: The parts it was worked out for, by an array that each of them owns.
        deleted: Keys that were deleted, as the engine knows them.
        masks: By part, whether a row counts.
    """

    parts: tuple["weakref.ref[Any]", ...]
    deleted: dict[Any, int]
    masks: tuple[Mask, ...]

    def is_of(self, segments: Sequence[Any], deleted: dict[Any, int]) -> bool:
        return (
            len(self.parts) == len(segments)
            and all(part() is segment.seqs for part, segment in zip(self.parts, segments, strict=True))
            and self.deleted == deleted
        )


class _Part:
    """A few rows of a part of the file, as the engine's search wants them."""

    indexes: dict[str, Any] = {}

    def __init__(self, segment: Any, rows: NDArray[np.int64]) -> None:
        self.partition = segment.partition
        self.num_rows = len(rows)
        self.pks = [segment.pks[row] for row in rows]
        self.seqs = segment.seqs[rows]
        self._segment = segment
        self._rows = rows

    def vector_data(self, field: str) -> tuple[Any, None]:
        return self._segment.vector_data(field)[0][self._rows], None

    def row_to_dict(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = self._segment.row_to_dict(int(self._rows[row]))
        return found


class QuickSearch:
    """Takes the place of the engine's search.

    Args:
        engine: The engine's own search.
        evaluate: The engine's evaluation of a filter on a part.
    """

    def __init__(self, engine: Search, evaluate: Callable[[Any, Any, Any], Any]) -> None:
        self._engine = engine
        self._evaluate = evaluate
        self._states: list[_State] = []
        self._lock = threading.Lock()

    def __call__(self, **asked: Any) -> list[list[dict[str, Any]]]:
        """As the engine's search, with the same named arguments."""
        segments = [segment for segment in asked["segments"] if segment.num_rows]
        if len(asked["query_vectors"]) == 1 and asked["memtable"].size() == 0 and not asked["partition_names"]:
            field = asked["vector_field"]
            if all(field in segment.indexes and segment.vector_data(field)[1] is None for segment in segments):
                asked["segments"] = self._nearest(segments, asked)
                asked["compiled_filter"] = None
        return self._engine(**asked)

    def _nearest(self, segments: Sequence[Any], asked: dict[str, Any]) -> list[_Part]:
        parts = []
        for segment, counts in zip(segments, self._counting(segments, asked["delta_index"]), strict=True):
            mask = counts
            if asked["compiled_filter"] is not None:
                wanted = self._evaluate(segment, asked["compiled_filter"], asked["indexed_filter_plan"])
                mask = counts & np.asarray(wanted, dtype=bool)
            if mask.any():
                rows, _ = segment.indexes[asked["vector_field"]].search(
                    asked["query_vectors"],
                    asked["top_k"],
                    valid_mask=None if mask.all() else mask,
                    params=asked["search_params"],
                )
                parts.append(_Part(segment, rows[0][rows[0] >= 0]))
        return parts

    def _counting(self, segments: Sequence[Any], delta: Any) -> tuple[Mask, ...]:
        deleted: dict[Any, int] = delta._map
        with self._lock:
            for state in self._states:
                if state.is_of(segments, deleted):
                    return state.masks
        newest: dict[Any, int] = {}
        numbers = [segment.seqs.tolist() for segment in segments]
        for segment, own in zip(segments, numbers, strict=True):
            for key, number in zip(segment.pks, own, strict=True):
                if number > newest.get(key, -1):
                    newest[key] = number
        masks = tuple(
            np.array(
                [newest[key] == n and deleted.get(key, -1) <= n for key, n in zip(segment.pks, own, strict=True)],
                dtype=bool,
            )
            for segment, own in zip(segments, numbers, strict=True)
        )
        state = _State(tuple(weakref.ref(segment.seqs) for segment in segments), dict(deleted), masks)
        with self._lock:
            alive = [known for known in self._states if all(part() is not None for part in known.parts)]
            self._states = [state, *alive][:_MOST_STATES]
        return masks


def install() -> bool:
    """Let Milvus Lite search so in this process; may be called again.

    Returns:
        Whether this version of milvus-lite can.
    """
    if version("milvus-lite") != TESTED:
        return False
    from milvus_lite.engine import collection
    from milvus_lite.search.indexed_filter import evaluate_segment_filter

    if not isinstance(collection.execute_search_with_index, QuickSearch):
        collection.execute_search_with_index = QuickSearch(
            collection.execute_search_with_index, evaluate_segment_filter
        )
    return True
