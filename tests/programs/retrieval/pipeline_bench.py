"""A searcher over stores in memory, for the tests of the pipeline."""

import asyncio
from collections.abc import Sequence
from typing import Any

from memory_store import MemoryDenseStore, MemoryTextStore

from programs.retrieval.base import Row
from programs.retrieval.pipeline import IndexStores, Searcher, SearchResult
from programs.retrieval.plan import RetrievalPlan
from signatures.records import Passage


class Bench:
    """Stores in memory with some passages, real embeddings, and a searcher over both."""

    def __init__(
        self, embedder: Any, passages: Sequence[Passage], reranker: Any = None, **faults: dict[str, Any]
    ) -> None:
        self.embedder = embedder
        self.dense = MemoryDenseStore(embedder.dimension, **faults.get("dense", {}))
        self.text = MemoryTextStore(**faults.get("text", {}))
        self.add(*[Row(p.id, "passage", p.text, p) for p in passages])
        self.searcher = Searcher({"documents": IndexStores(lambda: self.dense, lambda: self.text)}, embedder, reranker)

    def add(self, *rows: Row) -> None:
        self.dense.upsert(rows, self.embedder.encode_document([row.text for row in rows]))
        self.text.upsert([row for row in rows if row.kind == "passage"])

    def search(
        self, *queries: str, category: str | None = None, texts: dict[str, str] | None = None, **plan: Any
    ) -> SearchResult:
        plan = {"rerank": False, **plan}
        return asyncio.run(self.searcher.search(queries, RetrievalPlan(**plan), category=category, **(texts or {})))


def ids(result: SearchResult) -> list[str]:
    return [hit.passage.id for hit in result.hits]
