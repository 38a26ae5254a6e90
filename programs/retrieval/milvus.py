"""Milvus: dense vectors on Milvus Lite and on servers from 2.3, BM25 on Milvus Lite and from 2.5."""

import json
import logging
import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from programs.errors import StoreMismatch
from programs.retrieval import tokens
from programs.retrieval.base import Kind, Match, Row, Vector
from programs.retrieval.milvus_collection import MilvusCollection
from programs.retrieval.milvus_rows import MAX_BYTES, MAX_LIMIT, NAME, encode_tokens, pack, quote
from programs.retrieval.payload import row_of

__all__ = ["MilvusDenseStore", "MilvusTextStore", "quote"]


class MilvusDenseStore(MilvusCollection):
    """A `DenseStore`: HNSW with cosine.

    Args:
        uri: `….db` for Milvus Lite, else the address of a server from 2.3.
        collection: Letters, digits and `_`.
        dimension: Of the vectors.
        embedder: `Embedder.name`; a collection made with another one is refused.
        token: `user:password` or an API key, for servers that ask for one.
        timeout: Seconds of one request.

    Raises:
        StoreUnavailable: There is no server, or it does not answer.
        StoreLocked: Another process holds the file.
        StoreMismatch: The server is too old, or (with the first use) the collection is another one.
    """

    def __init__(
        self,
        uri: str,
        *,
        collection: str,
        dimension: int,
        embedder: str,
        token: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._dimension = dimension
        identity = {"store": "dense", "embedder": embedder, "dimension": str(dimension)}
        super().__init__(_import(), uri, collection=collection, identity=identity, token=token, timeout=timeout)

    def upsert(self, rows: Sequence[Row], vectors: Vector) -> None:
        """Write rows. Nothing is written where a vector or a length is wrong."""
        array: Vector = np.asarray(vectors, dtype=np.float32)
        if len(array) != len(rows):
            raise StoreMismatch(f"There are {len(rows)} rows and {len(array)} vectors.", store=NAME)
        for number, row in enumerate(rows):
            self._check(array[number], f"row {row.id[:200]!r}")
        self._write(pack(rows, [{"vector": vector} for vector in array.tolist()]))

    def search(self, vector: Vector, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows nearest to `vector`; nearly always all of the nearest, as HNSW is approximate."""
        array: Vector = np.asarray(vector, dtype=np.float32)
        self._check(array, "the query")

        def params(limit: int) -> dict[str, Any]:
            return {"metric_type": "COSINE", "params": {"ef": min(max(128, 2 * limit), 2 * MAX_LIMIT)}}

        # What Milvus calls the distance of COSINE is the cosine itself.
        def score(distance: float) -> float:
            return round(min(1.0, max(-1.0, distance)), 6)

        return self._search(array.tolist(), "vector", params, score, top_k, kind, category)

    def read(self, row_ids: Sequence[str]) -> tuple[list[Row], Vector]:
        """The whole rows with these ids, in this order, and their vectors; unknown ids are left out."""
        records = self._records(row_ids, ["id", "kind", "payload", "vector"])
        rows = [row_of(r["id"], r["kind"], json.loads(r["payload"]), store=NAME) for r in records]
        vectors = np.array([r["vector"] for r in records], dtype=np.float32)
        return rows, vectors.reshape(len(rows), self._dimension)

    def _check(self, vector: Vector, whose: str) -> None:
        # Milvus answers a wrong vector with arbitrary rows.
        if vector.shape != (self._dimension,) or not np.isfinite(vector).all() or not vector.any():
            raise StoreMismatch(
                f"The vector of {whose} is not {self._dimension} finite numbers that are not all zero.",
                store=NAME,
                hint="Check the embedder.",
            )

    def _add_fields(self, schema: Any) -> None:
        schema.add_field("vector", self._pymilvus.DataType.FLOAT_VECTOR, dim=self._dimension)

    def _add_index(self, index: Any) -> None:
        index.add_index("vector", index_type="HNSW", metric_type="COSINE", params={"M": 16, "efConstruction": 200})


class MilvusTextStore(MilvusCollection):
    """A `TextStore`: Milvus' own BM25 over the tokens of `programs.retrieval.tokens`.

    Milvus Lite counts how rare a word is in each of its parts separately, so scores shift a little
    with every flush.

    Args:
        uri: `….db` for Milvus Lite, else the address of a server from 2.5.
        collection: Letters, digits and `_`; not the one of a dense store.
        token: `user:password` or an API key, for servers that ask for one.
        timeout: Seconds of one request.

    Raises:
        StoreUnavailable: There is no server, or it does not answer.
        StoreLocked: Another process holds the file.
        StoreMismatch: The server is older than 2.5, or (with the first use) the collection is another one.
    """

    def __init__(self, uri: str, *, collection: str, token: str | None = None, timeout: float = 10.0) -> None:
        identity = {"store": "text", "tokens": str(tokens.VERSION)}
        super().__init__(_import(), uri, collection=collection, identity=identity, token=token, timeout=timeout)

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write rows. Nothing is written where a text has more than some 6,500 tokens."""
        self._write(pack(rows, [{"tokens": encode_tokens(tokens.tokenize(row.text))} for row in rows]))

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows with the highest BM25; only the first 128 distinct tokens of `query` count."""
        terms = tokens.query_terms(query)
        if not terms:
            return []

        def params(limit: int) -> dict[str, Any]:
            return {"metric_type": "BM25"}

        # Milvus Lite gives BM25 with a minus, a server without.
        def score(distance: float) -> float:
            return round(abs(distance), 5)

        return self._search(encode_tokens(terms), "sparse", params, score, top_k, kind, category)

    def _check_version(self) -> None:
        super()._check_version()
        if not self.supports_text:
            raise StoreMismatch(
                f"The Milvus server {self._connection.address} is {self.server_version()} and cannot search text.",
                store=NAME,
                hint="Use Milvus 2.5 or newer, or another text store.",
            )

    def _add_fields(self, schema: Any) -> None:
        pymilvus = self._pymilvus
        schema.add_field(
            "tokens",
            pymilvus.DataType.VARCHAR,
            max_length=MAX_BYTES,
            enable_analyzer=True,
            analyzer_params={"tokenizer": "standard"},
        )
        schema.add_field("sparse", pymilvus.DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            pymilvus.Function(
                name="bm25",
                function_type=pymilvus.FunctionType.BM25,
                input_field_names=["tokens"],
                output_field_names=["sparse"],
            )
        )

    def _add_index(self, index: Any) -> None:
        index.add_index(
            "sparse",
            index_type="SPARSE_INVERTED_INDEX",
            metric_type="BM25",
            params={"bm25_k1": 1.2, "bm25_b": 0.75},
        )


@cache
def _import() -> ModuleType:
    # Milvus Lite complains of the keep-alive that pymilvus asks for, on standard error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import pymilvus

    # Both write whole tracebacks of errors that are raised and handled anyway.
    for noisy in ("pymilvus", "milvus_lite"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
    module: ModuleType = pymilvus
    return module
