"""Rows in an Elasticsearch index: what the two stores have in common."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from programs.errors import StoreError, StoreMismatch, StoreUnavailable
from programs.retrieval.base import Kind, Match
from programs.retrieval.elastic_alias import ElasticAlias
from programs.retrieval.elastic_connection import NAME, ElasticIndex, IndexGone
from programs.retrieval.elastic_schema import STORED, Design, conditions, digest, unpack

MAX_LIMIT = 10_000
"""Most rows that one search may return."""

_NAMED = 256  # rows that are asked for by their ids in one request; the longest are 60 kB
_ATTEMPTS = 5  # each failure means that another process made or replaced the index just now
_REBUILD = "Use the settings it was made with, or `adaptive-rag index --rebuild PATH…`."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """An index that was checked.

    Attributes:
        target: Alias for searching and writing.
        design: What it was made with.
    """

    target: str
    design: Design


class ElasticCollection:
    """Rows in one index. The stores add what is searched.

    Args:
        index: The connection; closed with the last store that uses it.
        role: End of the alias, such as `text`.
    """

    def __init__(self, index: ElasticIndex, role: str) -> None:
        self._index = index
        self._client = index.client
        self._alias = ElasticAlias(index, f"{index.prefix}_{role}")
        self._lock = threading.RLock()
        self._opened: Opened | None = None
        self._seen = False
        self._building = False
        self._closed = False
        index.join()

    @property
    def name(self) -> str:
        """`elasticsearch`."""
        return NAME

    def delete(self, row_ids: Iterable[str]) -> None:
        """Remove rows; unknown ids are ignored."""
        keys = [digest(row_id) for row_id in row_ids]
        if keys:
            self._with_index(lambda opened: self._send(opened, "delete", dict.fromkeys(keys, {})), None)

    def ids(self) -> set[str]:
        """All row ids, of all kinds."""
        return self._with_index(lambda opened: self._index.scan(opened.target, "id"), set())

    def count(self, kind: Kind | None = None) -> int:
        """Number of rows, of one kind or of all."""
        query = {"match_all": {}} if kind is None else {"bool": {"filter": conditions(kind, None)}}

        def run(opened: Opened) -> int:
            # Not the API of that name: it is content with some of the shards.
            answer = self._client.search(
                index=opened.target, query=query, size=0, track_total_hits=True, allow_partial_search_results=False
            )
            return int(answer["hits"]["total"]["value"])

        return self._with_index(run, 0)

    def flush(self) -> None:
        """Make everything written visible to every process."""
        self._with_index(lambda opened: self._index.writer.indices.refresh(index=opened.target), None)

    def clear(self) -> None:
        """Remove everything, also an index that was made with other settings."""
        if self._building:
            self.flush()
            self.delete(self.ids())
            self.flush()
            return
        with self._lock, self._index.translated():
            self._opened, self._seen = None, False
            if self._alias.live():
                design = self._design()
                self._alias.swap(self._alias.make(design, live=False), design)

    @contextmanager
    def rebuilding(self) -> Iterator[Self]:
        """Fill a new index while the old one is searched; then swap them, in one step.

        Gives a store that writes to the new index. What others write to the old one meanwhile is lost
        with it. After an exception inside, everything is as before.

        Raises:
            StoreLocked: Another rebuild was finished in between.
        """
        with self._lock, self._index.translated():
            design = self._design()
            physical = self._alias.make(design, live=False)
        fresh = copy.copy(self)
        fresh._opened, fresh._seen, fresh._building = Opened(self._alias.unfinished(physical), design), True, True
        try:
            yield fresh
            fresh.flush()
            with self._lock, self._index.translated():
                self._alias.swap(physical, design)
                self._opened, self._seen = Opened(self._alias.target(design), design), True
        except BaseException:  # also an interrupt leaves no unfinished index behind
            with suppress(StoreError), self._index.translated():  # what stays behind goes with the next rebuild
                self._alias.abandon(physical)
            raise

    def close(self) -> None:
        """Close the connection, unless another store uses it."""
        if not self._closed and not self._building:
            self._closed = True
            self._index.leave()

    # What the two stores are made of.

    def _design(self) -> Design:
        """For a new index."""
        raise NotImplementedError

    def _design_of(self, identity: Mapping[str, str]) -> Design:
        """The design this store needs to work with an index of this identity, as far as it can."""
        raise NotImplementedError

    def _prove(self, opened: Opened) -> None:
        """See that searches in this index can work; `StoreMismatch` where they cannot."""

    def _write(self, pack: Callable[[Opened], Mapping[str, dict[str, Any]]]) -> None:
        """Write what `pack` makes for an index: sources by `_id`.

        Rows may have been written when this raises, as Elasticsearch has no transactions; to write
        them again does no harm.
        """
        self._ready(create=True)
        self._with_index(lambda opened: self._send(opened, "index", pack(opened)), None)

    def _with_index(self, run: Callable[[Opened], T], missing: T) -> T:
        """What `run` gives, or `missing` where no index was ever made.

        An index that goes away just now was replaced: `run` is called again with the new one.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                opened = self._ready()
                if opened is None:
                    return missing
                with self._index.translated():
                    return run(opened)
            except IndexGone:
                if self._building:
                    raise self._alias.superseded() from None
                if attempt == _ATTEMPTS:
                    raise
                self._opened = None
        raise AssertionError("unreachable")

    def _hits(self, opened: Opened, limit: int, score: Callable[[float], float], **search: Any) -> list[Match]:
        """The first `limit` rows of a search, by falling score and id; `score` from the server's to ours."""
        answer = self._client.search(
            index=opened.target,
            size=limit,
            source_includes=STORED,
            track_total_hits=False,
            allow_partial_search_results=False,  # else a shard that is down is a result that lacks rows
            **search,
        )
        matches = [unpack(hit, score(float(hit["_score"]))) for hit in answer["hits"]["hits"]]
        return sorted(matches, key=lambda match: (-match.score, match.row_id))

    def _named(
        self, opened: Opened, row_ids: Sequence[str], sources: Sequence[str], fields: Sequence[str]
    ) -> list[Mapping[str, Any]]:
        """What the server has of the rows with these ids, in their order."""
        keys = list(dict.fromkeys(digest(row_id) for row_id in row_ids))
        found: dict[str, Mapping[str, Any]] = {}
        for start in range(0, len(keys), _NAMED):
            part = keys[start : start + _NAMED]
            answer = self._client.search(
                index=opened.target,
                query={"ids": {"values": part}},
                size=len(part),
                source_includes=sources,
                fields=[{"field": name} for name in fields],
                track_total_hits=False,
                allow_partial_search_results=False,
            )
            found.update((hit["_id"], hit) for hit in answer["hits"]["hits"])
        return [found[key] for key in keys if key in found]

    def _send(self, opened: Opened, operation: str, sources: Mapping[str, Mapping[str, Any]]) -> None:
        failed = self._index.bulk(
            {"_op_type": operation, "_index": opened.target, "_id": key, "_source": source}
            for key, source in sources.items()
        )
        if failed:
            row_id = sources[failed[0]["_id"]].get("id", "")
            raise StoreMismatch(
                f"Elasticsearch does not take row {row_id[:200]!r}: {self._index.reason(failed[0])}",
                store=NAME,
                hint="Check the version of the server.",
            )

    def _ready(self, *, create: bool = False) -> Opened | None:
        """The checked index; None where there is none and `create` does not ask for one."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock, self._index.translated():
            for _ in range(_ATTEMPTS):
                live = self._alias.live()
                if live:
                    opened = self._check(*live)
                    self._index.wait(opened.target)
                    self._prove(opened)
                    self._opened, self._seen = opened, True
                    return opened
                if self._seen:
                    # To make it anew would hide that rows are gone.
                    raise StoreUnavailable(f"The index {self._alias.name!r} was removed.", store=NAME, hint=_REBUILD)
                if not create:
                    return None
                self._alias.make(self._design(), live=True)
        raise StoreUnavailable(f"The index {self._alias.name!r} cannot be made.", store=NAME)

    def _check(self, physical: str, state: Mapping[str, Any]) -> Opened:
        mappings = state["mappings"]
        design = self._design_of(mappings.get("_meta") or {})
        target = self._alias.target(design)
        different = design.differences(mappings)
        if not different and target not in state["aliases"]:
            different = [f"the alias {target!r} is missing"]
        if different:
            raise StoreMismatch(
                f"The index {physical!r} was made otherwise: {'; '.join(different)}.", store=NAME, hint=_REBUILD
            )
        return Opened(target, design)


def best(fetch: Callable[[int], list[Match]], top_k: int, most: int) -> list[Match]:
    """The best rows, equal scores in the order of their ids.

    Args:
        fetch: Gives so many rows, sorted, of equal ones any.
        top_k: Rows wanted.
        most: Rows that `fetch` can give at most.
    """
    # The server cannot sort so: of a search for neighbours it sees the best only, and it does not round.
    wanted, limit = min(top_k, most), min(top_k + 1, most)
    while True:
        found = fetch(limit)
        # Rows that tie with the last one wanted may lie behind the limit.
        if len(found) < limit or limit == most or found[-1].score < found[wanted - 1].score:
            return found[:wanted]
        limit = min(limit * 4, most)
