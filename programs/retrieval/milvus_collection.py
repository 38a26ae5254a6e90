"""One collection of Milvus: what the dense and the text store have in common."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval import milvus_swap
from programs.retrieval.base import Kind, Match
from programs.retrieval.milvus_connection import CollectionGone, MilvusConnection
from programs.retrieval.milvus_rows import (
    MAX_BYTES,
    MAX_LIMIT,
    NAME,
    PROPERTY,
    STORED,
    condition,
    digest,
    noted_identity,
    parse_version,
    quote,
    unpack,
)

SCHEMA_VERSION = "1"
"""To be raised when the fields change."""

_OLDEST = (2, 3)  # upsert
_OLDEST_WITH_TEXT = (2, 5)  # BM25
_ADMIN_SECONDS = 60  # most for making, loading and flushing a collection; pymilvus overlooks a float here
_ATTEMPTS = 3  # each failure means that the collection was replaced just now
_BATCH = 256  # rows of one request: 256 of the largest stay below the 64 MB a server takes


class MilvusCollection:
    """A collection that is made with the first write, and checked before anything else.

    Args:
        pymilvus: The library.
        uri: `….db` or `http://host:19530`.
        collection: Name of the collection.
        identity: What must be equal in the program and in the collection.
        token: `user:password` or an API key.
        timeout: Seconds of one request.
    """

    def __init__(
        self,
        pymilvus: ModuleType,
        uri: str,
        *,
        collection: str,
        identity: dict[str, str],
        token: str | None,
        timeout: float,
    ) -> None:
        self._pymilvus = pymilvus
        self._collection = self._target = collection
        self._identity = {"schema": SCHEMA_VERSION, **identity}
        self._timeout = timeout
        self._known = False
        self._unflushed = False
        self._connection = MilvusConnection(pymilvus, uri, token=token, timeout=timeout)
        self._client = self._connection.client
        self._lock = self._connection.lock
        try:
            self._check_version()
        except StoreMismatch:
            self.close()
            raise

    @property
    def name(self) -> str:
        """`milvus`."""
        return NAME

    def server_version(self) -> str | None:
        """What the server calls itself, such as `v2.3.5-lite`; None where it does not say."""
        return self._connection.version

    @property
    def supports_text(self) -> bool:
        """Whether a BM25 search can work here. A server before 2.5 takes the schema and never finds anything."""
        return self._connection.lite or (parse_version(self.server_version() or "") or (0, 0)) >= _OLDEST_WITH_TEXT

    def delete(self, row_ids: Iterable[str]) -> None:
        """Remove rows; unknown ids are ignored."""
        keys = [digest(row_id) for row_id in row_ids]
        if not keys or not self._ready():
            return
        with self._lock, self._connection.translated():
            for start in range(0, len(keys), _BATCH):
                self._client.delete(self._target, ids=keys[start : start + _BATCH], timeout=self._timeout)
            self._unflushed = True

    def ids(self) -> set[str]:
        """All row ids, of all kinds."""
        if not self._ready():
            return set()
        # Keys are evenly spread, so ranges of keys hold about as many rows each.
        ranges = self.count() // (MAX_LIMIT // 2) + 1
        bounds = [f"{number * 2**32 // ranges:08x}" for number in range(ranges)] + ["g"]
        found: set[str] = set()
        for low, high in zip(bounds, bounds[1:], strict=False):
            span = f"key >= {quote(low)} and key < {quote(high)}"
            rows = self._query(span, ["id"], limit=MAX_LIMIT)
            if len(rows) == MAX_LIMIT:
                raise StoreUnavailable("Too many rows were written while the ids were read.", store=NAME)
            found.update(str(row["id"]) for row in rows)
        return found

    def count(self, kind: Kind | None = None) -> int:
        """Number of rows, of one kind or of all."""
        if not self._ready():
            return 0
        rows = self._query("" if kind is None else condition(kind, None), ["count(*)"])
        return int(rows[0]["count(*)"])

    def flush(self) -> None:
        """Make everything written visible; quick on a server, where strong reads see it already."""
        with self._lock:
            if not self._connection.lite or not self._unflushed:
                return
            with self._connection.translated():
                self._client.flush(self._target, timeout=_ADMIN_SECONDS)
            self._unflushed = False

    def clear(self) -> None:
        """Remove the collection, also one that was made with another embedder."""
        with self._lock, self._connection.translated():
            milvus_swap.drop(self._client, self._collection)
            self._known = self._unflushed = False

    @contextmanager
    def rebuilding(self) -> Iterator[Self]:
        """A new collection, also of another embedder, that takes the place of this one.

        Between two renamings some milliseconds pass, in which a search asks again. After the process
        has died, the next rebuild removes what it left.
        """
        fresh = copy.copy(self)
        fresh._collection = fresh._target = self._collection + milvus_swap.NEW
        fresh._known = fresh._unflushed = False
        with self._lock, self._connection.translated():
            milvus_swap.prepare(self._client, self._collection)
        try:
            fresh._ready(create=True)
            yield fresh
            fresh.flush()
            with self._lock, self._connection.translated():
                milvus_swap.swap(self._client, self._collection, 0.0 if self._connection.lite else self._timeout)
        finally:
            self._known = self._unflushed = False

    def close(self) -> None:
        """Close the connection; the last store of a Milvus Lite file gives its lock back."""
        self._connection.close()

    # What the two stores are made of.

    def _add_fields(self, schema: Any) -> None:
        """Add the fields that are searched."""
        raise NotImplementedError

    def _add_index(self, index: Any) -> None:
        """Add the index over them."""
        raise NotImplementedError

    def _write(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        self._ready(create=True)
        with self._lock, self._connection.translated():
            for start in range(0, len(records), _BATCH):
                self._client.upsert(self._target, records[start : start + _BATCH], timeout=self._timeout)
            self._unflushed = True

    def _records(self, row_ids: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        """Fields of the rows with these ids, in their order."""
        if not row_ids or not self._ready():
            return []
        keys = list(dict.fromkeys(digest(row_id) for row_id in row_ids))
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(keys), _BATCH):
            names = ", ".join(quote(key) for key in keys[start : start + _BATCH])
            found.update((record["key"], record) for record in self._query(f"key in [{names}]", ["key", *fields]))
        return [found[key] for key in keys if key in found]

    def _search(
        self,
        data: Any,
        field: str,
        params: Callable[[int], dict[str, Any]],
        score: Callable[[float], float],
        top_k: int,
        kind: Kind,
        category: str | None,
    ) -> list[Match]:
        """The best rows, equal scores in the order of their ids.

        Args:
            data: Vector or text.
            field: Field that is searched.
            params: Parameters of the search by the number of rows asked for.
            score: From the library's distance to a score where higher is better, rounded, as the
                last digits differ between the parts of a collection.
        """
        if top_k < 1 or not self._ready():
            return []
        top_k, limit = min(top_k, MAX_LIMIT), min(top_k + 1, MAX_LIMIT)
        while True:
            asked: dict[str, Any] = {"limit": limit, "search_params": params(limit)}
            hits = self._asked(
                self._client.search,
                data=[data],
                anns_field=field,
                filter=condition(kind, category),
                output_fields=STORED,
                **asked,
            )[0]
            found = sorted(
                ((score(float(hit["distance"])), hit["entity"]) for hit in hits),
                key=lambda row: (-row[0], row[1]["id"]),
            )
            # Rows that tie with the last one wanted may lie behind the limit.
            if len(found) < limit or limit == MAX_LIMIT or found[-1][0] < found[top_k - 1][0]:
                return [unpack(entity, value) for value, entity in found[:top_k]]
            limit = min(limit * 4, MAX_LIMIT)

    def _check_version(self) -> None:
        version = parse_version(self.server_version() or "")
        if not self._connection.lite and version is not None and version < _OLDEST:
            raise StoreMismatch(
                f"The Milvus server {self._connection.address} is {self.server_version()}.",
                store=NAME,
                hint="Use Milvus 2.3 or newer.",
            )

    def _ready(self, *, create: bool = False) -> bool:
        """Whether the collection is there, checked and loaded; makes it where `create` says so."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._known or self._opened(create)
            except CollectionGone:  # renamed after it was looked for
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _opened(self, create: bool) -> bool:
        with self._lock, self._connection.translated():
            target = milvus_swap.live(self._client, self._collection, self._timeout)
            if target is None:
                if not create:
                    return False
                self._make()
            self._target = target or self._collection
            self._check_identity(self._client.describe_collection(self._target, timeout=self._timeout))
            if not self._client.list_indexes(self._target, timeout=self._timeout):
                # Separately, as a process may die in between. Nothing is there yet that one could wait for.
                index = self._client.prepare_index_params()
                self._add_index(index)
                self._client.create_index(self._target, index, timeout=_ADMIN_SECONDS, sync=False)
            self._load()
            self._known = True
            return True

    def _load(self) -> None:
        try:
            self._client.load_collection(self._target, timeout=_ADMIN_SECONDS)
        except self._pymilvus.MilvusException as error:
            if not self._connection.drop_broken_indexes(error.message):
                raise
            self._client.load_collection(self._target, timeout=_ADMIN_SECONDS)

    def _make(self) -> None:
        data_type = self._pymilvus.DataType
        # Milvus Lite forgets the description, and a server may not know these properties.
        schema = self._client.create_schema(
            auto_id=False, enable_dynamic_field=False, description=json.dumps(self._identity)
        )
        schema.add_field("key", data_type.VARCHAR, is_primary=True, max_length=32)
        schema.add_field("id", data_type.VARCHAR, max_length=MAX_BYTES)
        schema.add_field("kind", data_type.VARCHAR, max_length=16)
        schema.add_field("category", data_type.VARCHAR, max_length=MAX_BYTES)  # for people; searched by its digest
        schema.add_field("category_key", data_type.VARCHAR, max_length=32)
        schema.add_field("payload", data_type.VARCHAR, max_length=MAX_BYTES)
        self._add_fields(schema)
        self._client.create_collection(
            self._collection,
            schema=schema,
            consistency_level="Strong",
            properties={PROPERTY + name: value for name, value in self._identity.items()},
            timeout=_ADMIN_SECONDS,
        )

    def _check_identity(self, description: dict[str, Any]) -> None:
        found = noted_identity(description, self._identity)
        different = [name for name, value in self._identity.items() if found[name] != value]
        if different:
            raise StoreMismatch(
                f"The Milvus collection {self._collection!r} has another "
                + "; ".join(f"{name}: {found[name]!r}, here {self._identity[name]!r}" for name in different),
                store=NAME,
                hint="Use the settings it was made with, or index the documents into another collection.",
            )

    def _query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        bound = {} if limit is None else {"limit": limit}
        return list(self._asked(self._client.query, filter=expression, output_fields=fields, **bound))

    def _asked(self, call: Callable[..., Any], **what: Any) -> Any:
        """The answer about the collection, once more where that was replaced just now."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._connection.translated():
                    return call(self._target, consistency_level="Strong", timeout=self._timeout, **what)
            except CollectionGone:
                self._known = False
                if attempt == _ATTEMPTS or not self._ready():
                    raise
        raise AssertionError("unreachable")
