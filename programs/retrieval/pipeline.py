"""Runs a plan: routes side by side -> fuse -> check the filter again -> rerank -> threshold -> hits.

A route that fails or is too slow leaves its name in `outages`, and the others answer. An outage is
never an empty result: whoever reads "nothing found" can see whether everything was searched.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from programs import background, budget
from programs.errors import AdaptiveRAGError, StoreMismatch, StoreUnavailable
from programs.retrieval.base import DenseStore, Embedder, Kind, Match, TextStore, Vector
from programs.retrieval.fusion import RankedList, fuse, interleave
from programs.retrieval.plan import Index, RetrievalPlan, RouteName
from programs.retrieval.rerank import Reranker
from signatures.records import Hit

T = TypeVar("T")
EMBED_SECONDS = 30.0
"""For one query outside a plan; the first one loads the model."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexStores:
    """The two stores of one index, opened at the first search."""

    open_dense: Callable[[], DenseStore]
    open_text: Callable[[], TextStore]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        hits: Best first, at most `top_k`.
        degraded: What did not work, for the user.
        outages: Routes that failed.
    """

    hits: tuple[Hit, ...]
    degraded: tuple[str, ...] = ()
    outages: tuple[RouteName, ...] = ()


@dataclass(frozen=True, slots=True)
class _Leg:
    """One search of one store."""

    route: RouteName
    query: int
    text: str
    dense: bool
    kind: Kind = "passage"
    as_document: bool = False


class Searcher:
    """Searches the indexes of a program; holds the stores, and is never copied.

    Args:
        indexes: Stores by index.
        embedder: For dense routes.
        reranker: Scores candidates again; None keeps the fused order.
    """

    def __init__(
        self, indexes: Mapping[Index, IndexStores], embedder: Embedder, reranker: Reranker | None = None
    ) -> None:
        self._indexes = indexes
        self._embedder = embedder
        self._reranker = reranker

    async def query_vector(self, query: str) -> Vector:
        """Embedding of a query, shape (dimension,); the search of the same query does not embed it again."""
        vectors = await _in_thread(partial(self._embedder.encode_query, [query]), EMBED_SECONDS, "embedder")
        vector: Vector = vectors[0]
        return vector

    async def search(
        self,
        queries: Sequence[str],
        plan: RetrievalPlan,
        *,
        category: str | None = None,
        rewritten: str = "",
        hypothetical: str = "",
    ) -> SearchResult:
        """Search one or several queries with the routes of a plan.

        Args:
            queries: What is searched; hits of several queries are mixed fairly.
            plan: Routes, numbers and weights.
            category: Only passages of this category.
            rewritten: Query for the route of that name; "" leaves the route out.
            hypothetical: Passage for the route of that name; "" leaves it out.

        Returns:
            Hits; failures are reported in it and raise nothing.
        """
        legs = _legs(queries, plan.routes, rewritten, hypothetical)
        if plan.routes and not legs:
            # Such as `rewritten` alone, where nothing was rewritten: nothing was searched, so nothing is "not found".
            return SearchResult((), (f"{'、'.join(plan.routes)}: 没有可检索的语句",), plan.routes)
        vectors, failure = await self._embed(legs, plan)
        outcomes = await asyncio.gather(*(self._run(leg, plan, category, vectors, failure) for leg in legs))
        if all(outcome is None for outcome in outcomes):
            # Nothing was searched at all: this is no "not in the knowledge base".
            empty = StoreMismatch("索引里没有这些路的内容", store="dense", hint="adaptive-rag index --enrich PATH…")
            outcomes = [empty for _ in outcomes]
        degraded: dict[str, None] = {}
        outages: dict[RouteName, None] = {}
        fused: list[list[Hit]] = []
        for number in range(len(queries)):
            lists = []
            for leg, outcome in zip(legs, outcomes, strict=True):
                if isinstance(outcome, AdaptiveRAGError):
                    degraded[f"{leg.route}: {outcome.message}"] = None
                    outages[leg.route] = None
                elif leg.query == number and outcome is not None:
                    lists.append(RankedList(leg.route, outcome, plan.weights.get(leg.route, 1.0)))
            found = self._filtered(fuse(lists), category, degraded)
            if plan.rerank and self._reranker is not None and found:
                found = _near(await self._rerank(queries[number], found, plan, degraded), plan.relative_threshold)
            fused.append(found)
        hits = interleave(fused) if len(fused) > 1 else fused[0]
        kept = [hit for hit in hits if hit.score >= plan.score_threshold]
        return SearchResult(tuple(kept[: plan.top_k]), tuple(degraded), tuple(outages))

    def _filtered(self, hits: list[Hit], category: str | None, degraded: dict[str, None]) -> list[Hit]:
        """Hits of the category only: a store that ignores its filter must not show anything by it."""
        if category is None:
            return hits
        right = [hit for hit in hits if hit.passage.category == category]
        if len(right) < len(hits):
            _log.error("a store returned %d hits outside the filter", len(hits) - len(right))
            degraded["filter: 存储返回了类别之外的段落，已去掉"] = None
        return right

    async def _embed(
        self, legs: Sequence[_Leg], plan: RetrievalPlan
    ) -> tuple[dict[tuple[str, bool], Vector], AdaptiveRAGError | None]:
        """Vectors of the dense legs' texts, encoded together; or the error that hit all of them."""
        vectors: dict[tuple[str, bool], Vector] = {}
        for as_document in (False, True):
            texts = list(dict.fromkeys(leg.text for leg in legs if leg.dense and leg.as_document is as_document))
            if not texts:
                continue
            encode = self._embedder.encode_document if as_document else self._embedder.encode_query
            try:
                encoded = await _in_thread(partial(encode, texts), plan.route_timeout, "embedder")
            except AdaptiveRAGError as error:
                return {}, error
            vectors.update({(text, as_document): encoded[i] for i, text in enumerate(texts)})
        return vectors, None

    async def _run(
        self,
        leg: _Leg,
        plan: RetrievalPlan,
        category: str | None,
        vectors: Mapping[tuple[str, bool], Vector],
        failure: AdaptiveRAGError | None,
    ) -> list[Match] | AdaptiveRAGError | None:
        """Matches, or the error; None where the index was never given rows of this kind, which is no failure:
        the passages themselves are searched by other routes."""
        if leg.dense and failure is not None:
            return failure
        stores = self._indexes[plan.index]

        def call() -> list[Match] | None:
            options: dict[str, Any] = {"top_k": plan.rough_top_k, "kind": leg.kind, "category": category}
            if not leg.dense:
                return stores.open_text().search(leg.text, **options)
            dense = stores.open_dense()
            found = dense.search(vectors[leg.text, leg.as_document], **options)
            if not found and leg.kind != "passage" and not dense.count(leg.kind):
                return None
            return found

        try:
            return await _in_thread(call, plan.route_timeout, leg.route)
        except AdaptiveRAGError as error:
            return error  # also what opening a store raises

    async def _rerank(self, query: str, hits: list[Hit], plan: RetrievalPlan, degraded: dict[str, None]) -> list[Hit]:
        assert self._reranker is not None
        try:
            return await _in_thread(partial(self._reranker.rerank, query, hits), plan.route_timeout, "rerank")
        except AdaptiveRAGError as error:
            degraded[f"rerank: {error.message}"] = None
            return hits


def _near(hits: list[Hit], share: float) -> list[Hit]:
    """Hits that are at least that share as good as the best; scores of a fusion alone say too little for that."""
    reranked = [hit for hit in hits if "rerank" in hit.raw]
    return [hit for hit in hits if hit.score >= share * hits[0].score] if len(reranked) == len(hits) else hits


def _legs(queries: Sequence[str], routes: Sequence[RouteName], rewritten: str, hypothetical: str) -> list[_Leg]:
    legs: list[_Leg] = []
    for number, query in enumerate(queries):
        for route in routes:
            match route:
                case "dense":
                    legs.append(_Leg(route, number, query, dense=True))
                case "text":
                    legs.append(_Leg(route, number, query, dense=False))
                case "questions":
                    legs.append(_Leg(route, number, query, dense=True, kind="question"))
                case "summaries":
                    legs.append(_Leg(route, number, query, dense=True, kind="summary"))
                case "rewritten" if rewritten:
                    legs.append(_Leg(route, number, rewritten, dense=True))
                    legs.append(_Leg(route, number, rewritten, dense=False))
                case "hypothetical" if hypothetical:
                    # Never to BM25: a long imagined text is many wrong words.
                    legs.append(_Leg(route, number, hypothetical, dense=True, as_document=True))
    return legs


async def _in_thread(call: Callable[[], T], seconds: float, name: str) -> T:
    """`call` in a thread, given up after `seconds` or at the request's deadline.

    Raises:
        StoreUnavailable: It took too long. Other errors are the call's own.
    """
    account = budget.current()
    remaining = account.remaining
    limit = seconds if remaining is None else max(0.0, min(seconds, remaining))
    with account.timing("store"):
        try:
            return await asyncio.wait_for(background.in_thread(call), limit)
        except TimeoutError as error:
            own = remaining is None or seconds <= remaining
            raise StoreUnavailable(f"{limit:.1f} 秒内没有回应" if own else "问题的时间已用完", store=name) from error
