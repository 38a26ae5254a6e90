"""What the two Elasticsearch stores have in common: the index behind an alias, and its rows.

Three kinds of names, for a store called `kb_text`:

    kb_text-000007      an index; a rebuild makes the next one
    kb_text             the alias of the live one, for people and for finding it
    kb_text.1f0c9a3e    another alias of the live one, with a digest of its identity: what it was made
                        with. All searches and writes go here, so that a process which does not know
                        yet that the index was made anew with other settings meets an error, and never
                        searches words that were cut otherwise, which would find nothing.

One request makes the aliases point to another index and removes the old one, so there is no moment
without an index, and none with two.
"""

import copy
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from programs.errors import StoreError, StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval.base import Kind
from programs.retrieval.elastic_connection import NAME, ElasticIndex, IndexGone
from programs.retrieval.elastic_schema import Design, conditions, digest

MAX_LIMIT = 10_000
"""Most rows that one search may return."""

_REBUILD = "Use the settings it was made with, or `adaptive-rag index --rebuild PATH…`."
_ATTEMPTS = 20  # to find a free number, or to swap while others do; each failure means that another one got through

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
        self._alias = f"{index.prefix}_{role}"
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
            self._send(lambda target: ({"_op_type": "delete", "_index": target, "_id": key} for key in keys), {})

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
        self._with_index(lambda opened: self._client.indices.refresh(index=opened.target), None)

    def clear(self) -> None:
        """Remove everything, also an index that was made with other settings."""
        if self._building:
            self.flush()
            self.delete(self.ids())
            self.flush()
            return
        with self._lock, self._index.translated():
            if self._live():
                self._swap(*self._make(live=False))

    @contextmanager
    def rebuild(self) -> Iterator[Self]:
        """Fill a new index while the old one is searched; then swap them, in one step.

        Gives a store that writes to the new index. What others write to the old one meanwhile is lost
        with it. After an exception inside, everything is as before.

        Raises:
            StoreLocked: Another rebuild was finished in between.
        """
        with self._lock, self._index.translated():
            physical, design = self._make(live=False)
        fresh = copy.copy(self)
        fresh._opened, fresh._seen, fresh._building = Opened(f"{physical}.new", design), True, True
        try:
            yield fresh
            fresh.flush()
            with self._lock, self._index.translated():
                self._swap(physical, design)
        except BaseException:
            with suppress(StoreError), self._index.translated():  # what stays behind goes with the next rebuild
                self._client.indices.delete(index=physical, ignore_unavailable=True)
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

    def _write(self, pack: Callable[[Opened], Mapping[str, dict[str, Any]]]) -> None:
        """Write what `pack` makes for an index: sources by `_id`.

        Rows may have been written when this raises, as Elasticsearch has no transactions; to write
        them again does no harm.
        """
        opened = self._ready(create=True)
        packed = pack(opened) if opened else {}
        names = {key: source["id"] for key, source in packed.items()}
        self._send(lambda target: _actions(target, packed), names)

    def _with_index(self, run: Callable[[Opened], T], missing: T) -> T:
        """What `run` gives, or `missing` where no index was ever made.

        An index that goes away just now was replaced: `run` is called again with the new one.
        """
        try:
            opened = self._ready()
            if opened is None:
                return missing
            with self._index.translated():
                return run(opened)
        except IndexGone:
            if self._building:
                raise
        with self._lock:
            self._opened = None
            again = self._ready()
        if again is None:
            raise StoreUnavailable(f"The index {self._alias!r} was removed.", store=NAME, hint=_REBUILD)
        with self._index.translated():
            return run(again)

    def _send(self, actions: Callable[[str], Iterable[dict[str, Any]]], names: Mapping[str, str]) -> None:
        failed = self._with_index(lambda opened: self._index.bulk(actions(opened.target)), [])
        if failed:
            row = names.get(failed[0]["_id"], "")
            raise StoreMismatch(
                f"Elasticsearch does not take row {row[:200]!r}: {self._index.reason(failed[0])}",
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
                live = self._live()
                if live:
                    self._opened = self._check(*live)
                    self._seen = True
                    return self._opened
                if self._seen:
                    # To make it anew would hide that rows are gone.
                    raise StoreUnavailable(f"The index {self._alias!r} was removed.", store=NAME, hint=_REBUILD)
                if not create:
                    return None
                self._make(live=True)
        raise StoreUnavailable(f"The index {self._alias!r} cannot be made.", store=NAME)

    def _live(self) -> tuple[str, Mapping[str, Any]] | None:
        """Name and state of the live index."""
        answer = self._client.options(ignore_status=404).indices.get(
            index=self._alias, features=["aliases", "mappings"]
        )
        if answer.meta.status == 404:
            return None
        [(physical, state)] = list(answer.body.items())[:1]
        if physical == self._alias or len(answer.body) > 1:
            raise StoreMismatch(
                f"{self._alias!r} is not the alias of one index.",
                store=NAME,
                hint="Another program made it; choose another ADAPTIVE_RAG_STORE_PREFIX.",
            )
        return physical, state

    def _check(self, physical: str, state: Mapping[str, Any]) -> Opened:
        mappings = state["mappings"]
        design = self._design_of(mappings.get("_meta") or {})
        target = f"{self._alias}.{design.fingerprint}"
        different = design.differences(mappings)
        if not different and target not in state["aliases"]:
            different = [f"the alias {target!r} is missing"]
        if different:
            raise StoreMismatch(
                f"The index {physical!r} was made otherwise: {'; '.join(different)}.", store=NAME, hint=_REBUILD
            )
        return Opened(target, design)

    def _all(self) -> dict[str, Mapping[str, Any]]:
        """Every index of this store, also unfinished ones: number, and aliases."""
        answer = self._client.options(ignore_status=404).indices.get_alias(index=f"{self._alias}-*")
        if answer.meta.status == 404:
            return {}
        ours = re.compile(re.escape(self._alias) + r"-\d{6}")
        return {name: state["aliases"] for name, state in answer.body.items() if ours.fullmatch(name)}

    def _make(self, *, live: bool) -> tuple[str, Design]:
        """Make the next index. Where another process made a live one at this moment, ours is not made."""
        design = self._design()
        number = max((int(name[-6:]) for name in self._all()), default=0)
        for _ in range(_ATTEMPTS):
            number += 1
            physical = f"{self._alias}-{number:06}"
            names = [self._alias, f"{self._alias}.{design.fingerprint}"] if live else [f"{physical}.new"]
            answer = self._client.options(ignore_status=400).indices.create(
                index=physical,
                aliases={name: {} for name in names},
                mappings=design.mappings,
                settings=design.settings,
            )
            if answer.meta.status != 400:
                return physical, design
            if answer.body["error"].get("type") != "resource_already_exists_exception":
                raise StoreMismatch(
                    f"Elasticsearch cannot make the index {physical!r}: {self._index.reason(answer.body)}", store=NAME
                )
            if live:
                return physical, design
        raise StoreUnavailable(f"No new index for {self._alias!r} can be made.", store=NAME)

    def _swap(self, physical: str, design: Design) -> None:
        """Make an index the live one, and remove the one before and unfinished ones that are older."""
        names = [self._alias, f"{self._alias}.{design.fingerprint}"]
        for _ in range(_ATTEMPTS):
            known = self._all()
            if physical not in known:
                raise StoreLocked(
                    f"Another rebuild of {self._alias!r} was finished, and removed this one.",
                    store=NAME,
                    hint="Index again, one process at a time.",
                )
            doomed = [name for name, aliases in known.items() if self._alias in aliases or name < physical]
            actions: list[dict[str, Any]] = [{"remove": {"index": physical, "alias": f"{physical}.new"}}]
            actions += [{"add": {"index": physical, "alias": name}} for name in names]
            actions += [{"remove_index": {"index": name}} for name in doomed]
            answer = self._client.options(ignore_status=404).indices.update_aliases(actions=actions)
            if answer.meta.status != 404:
                self._opened, self._seen = Opened(names[1], design), True
                return
        raise StoreUnavailable(f"The index {self._alias!r} changes all the time.", store=NAME)


def _actions(target: str, packed: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for key, source in packed.items():
        yield {"_op_type": "index", "_index": target, "_id": key, "_source": source}
