"""Elasticsearch: BM25 for a team, and vectors where one store is wanted for both.

    index = ElasticIndex("http://host:9200", prefix="kb")
    text, dense = ElasticTextStore(index), ElasticDenseStore(index, dimension=384, embedder="e5")

Fusion and filters are this program's own: the server's reciprocal rank fusion needs a licence.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from programs.errors import StoreMismatch
from programs.retrieval import elastic_schema as schema
from programs.retrieval.base import Kind, Match, Row, Vector
from programs.retrieval.elastic_collection import MAX_LIMIT, ElasticCollection, Opened, best
from programs.retrieval.elastic_connection import NAME, ElasticIndex
from programs.retrieval.elastic_schema import TOKENS, Design
from programs.retrieval.payload import row_of

__all__ = ["TOKENS", "ElasticDenseStore", "ElasticIndex", "ElasticTextStore"]

_OVERSAMPLE = 2.0  # so many times the rows asked for are scored again with whole numbers
_MAX_NEIGHBOURS = MAX_LIMIT // 2
_logger = logging.getLogger(__name__)


class ElasticTextStore(ElasticCollection):
    """A `TextStore`: BM25 (k1 1.2, b 0.75) over the tokens of `programs.retrieval.tokens`.

    Attributes:
        notes: Analyzers that were passed over for a new index, with the reason.

    Args:
        index: The connection.
        analyzers: How Chinese is cut in a new index: the first that works. `tokens` works everywhere;
            another one, such as `ik_max_word` or `smartcn`, adds the cut of the server's tokenizer of
            this name. An index that was made with none of them is refused.

    Raises:
        StoreMismatch: With the first use: the index was made with another analyzer or schema.
    """

    def __init__(self, index: ElasticIndex, *, analyzers: Sequence[str] = (TOKENS,)) -> None:
        super().__init__(index, "text")
        self._analyzers = tuple(analyzers) or (TOKENS,)
        self.notes: tuple[str, ...] = ()

    @property
    def analyzer(self) -> str | None:
        """The analyzer of the index; None before it is made."""
        opened = self._ready()
        return opened.design.identity["analyzer"] if opened else None

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write rows. Nothing is written where an id is too long or no Unicode."""
        if rows:
            self._write(
                lambda opened: schema.pack(rows, [schema.text_fields(row.text, _analyzer(opened)) for row in rows])
            )

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows with the highest BM25; only the first 128 distinct tokens of `query` count."""
        filters = schema.conditions(kind, category)

        def run(opened: Opened) -> list[Match]:
            words = schema.text_query(query, _analyzer(opened))
            if words is None:
                return []
            both = {"bool": {"must": words, "filter": filters}}
            # Rounded, as the order in which the parts of a sum are added must not decide between equal rows.
            return best(
                lambda limit: self._hits(opened, limit, lambda score: round(score, 5), query=both), top_k, MAX_LIMIT
            )

        return self._with_index(run, []) if top_k >= 1 else []

    def self_test(self) -> str:
        """Cut a sentence on the server and look for its words; also done when an index is opened.

        Returns:
            The analyzer of the index; before there is one, the analyzer that it would get.

        Raises:
            StoreMismatch: A word is not found.
        """
        opened = self._ready()
        if opened is None:
            return self._choose()
        self._prove(opened)
        return _analyzer(opened)

    def _prove(self, opened: Opened) -> None:
        if missed := self._missed(_analyzer(opened), opened.target):
            raise StoreMismatch(
                f"The analyzer {_analyzer(opened)!r} of {opened.target!r} does not find {', '.join(missed)}.",
                store=NAME,
                hint="Index the documents again, with another analyzer.",
            )

    def _design(self) -> Design:
        return schema.text_design(self._choose())

    def _design_of(self, identity: Mapping[str, str]) -> Design:
        recorded = identity.get("analyzer")
        return schema.text_design(recorded if recorded in self._analyzers else self._analyzers[0])

    def _choose(self) -> str:
        """The first analyzer that finds the words of a sentence."""
        notes = []
        try:
            for analyzer in self._analyzers:
                try:
                    missed = self._missed(analyzer)
                except StoreMismatch as error:
                    notes.append(f"{analyzer}: {error.message}")
                    continue
                if not missed:
                    return analyzer
                notes.append(f"{analyzer}: does not find {', '.join(missed)}")
        finally:
            self.notes = tuple(notes)
            for note in notes:
                _logger.warning("Elasticsearch analyzer passed over: %s", note)
        raise StoreMismatch(
            f"No analyzer of {self._index.address} works: {'; '.join(notes)}.",
            store=NAME,
            hint=f"Use {TOKENS!r}, which needs no plugin.",
        )

    def _missed(self, analyzer: str, target: str | None = None) -> list[str]:
        """Words that are not found, with the analyzer of an index or with one as it would be made."""

        def words(text: str) -> list[str]:
            return self._cut(schema.text_fields(text, TOKENS)["words"], "words", "whitespace", target)

        def han(text: str) -> list[str]:
            return self._cut(schema.han(text), "han", schema.tokenizer_of(analyzer), target)

        return schema.missed(words) + ([] if analyzer == TOKENS else schema.missed(han))

    def _cut(self, text: str, field: str, tokenizer: str, target: str | None) -> list[str]:
        filters = [schema.grammar_filter()] if field == "han" else []
        with self._index.translated():
            if target is None:
                answer = self._client.indices.analyze(tokenizer=tokenizer, filter=filters, text=text)
            else:
                answer = self._client.indices.analyze(index=target, field=field, text=text)
        return [str(token["token"]) for token in answer["tokens"]]


class ElasticDenseStore(ElasticCollection):
    """A `DenseStore`: HNSW with cosine.

    Args:
        index: The connection.
        dimension: Of the vectors, at most 4,096.
        embedder: `Embedder.name`; an index made with another one is refused.

    Raises:
        StoreMismatch: With the first use: the index was made with another embedder or schema.
    """

    def __init__(self, index: ElasticIndex, *, dimension: int, embedder: str) -> None:
        super().__init__(index, "dense")
        self._dimension = dimension
        self._embedder = embedder

    def upsert(self, rows: Sequence[Row], vectors: Vector) -> None:
        """Write rows. Nothing is written where a vector or an id is wrong."""
        array: Vector = np.asarray(vectors, dtype=np.float32)
        if len(array) != len(rows):
            raise StoreMismatch(f"There are {len(rows)} rows and {len(array)} vectors.", store=NAME)
        for number, row in enumerate(rows):
            self._check_vector(array[number], f"row {row.id[:200]!r}")
        if rows:
            self._write(lambda opened: schema.pack(rows, [{"vector": vector} for vector in array.tolist()]))

    def search(self, vector: Vector, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows nearest to `vector`; nearly always all of the nearest, as HNSW is approximate."""
        array: Vector = np.asarray(vector, dtype=np.float32)
        self._check_vector(array, "the query")
        filters = schema.conditions(kind, category)

        def nearest(opened: Opened, limit: int) -> list[Match]:
            knn = {
                "field": "vector",
                "query_vector": array.tolist(),
                "k": limit,
                "num_candidates": min(max(128, 2 * limit), MAX_LIMIT),
                "filter": filters,
                "rescore_vector": {"oversample": _OVERSAMPLE},
            }
            return self._hits(opened, limit, _cosine, knn=knn)

        def run(opened: Opened) -> list[Match]:
            return best(lambda limit: nearest(opened, limit), top_k, _MAX_NEIGHBOURS)

        return self._with_index(run, []) if top_k >= 1 else []

    def read(self, row_ids: Sequence[str]) -> tuple[list[Row], Vector]:
        """The whole rows with these ids, in this order, and their vectors; unknown ids are left out."""
        # The server leaves vectors out of the source, but not out of the fields that are asked for.
        hits: list[Mapping[str, Any]] = self._with_index(
            lambda opened: self._named(opened, row_ids, ["id", "kind", "payload"], ["vector"]), []
        )
        sources = [hit["_source"] for hit in hits]
        rows = [row_of(source["id"], source["kind"], source["payload"], store=NAME) for source in sources]
        vectors = np.array([hit["fields"]["vector"] for hit in hits], dtype=np.float32)
        return rows, vectors.reshape(len(rows), self._dimension)

    def _check_vector(self, vector: Vector, whose: str) -> None:
        if vector.shape != (self._dimension,) or not np.isfinite(vector).all() or not vector.any():
            raise StoreMismatch(
                f"The vector of {whose} is not {self._dimension} finite numbers that are not all zero.",
                store=NAME,
                hint="Check the embedder.",
            )

    def _design(self) -> Design:
        return schema.dense_design(self._dimension, self._embedder)

    def _design_of(self, identity: Mapping[str, str]) -> Design:
        return self._design()


def _cosine(score: float) -> float:
    """Elasticsearch gives (1 + cosine) / 2; rounded, as its last digits differ between parts of an index."""
    return round(min(1.0, max(-1.0, 2 * score - 1)), 6)


def _analyzer(opened: Opened) -> str:
    return opened.design.identity["analyzer"]
