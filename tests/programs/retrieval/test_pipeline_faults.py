"""What fails in a search is reported and never looks like "nothing found"; a filter holds whatever a store does."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pipeline_bench import Bench, ids

from programs import budget
from programs.budget import Budget
from programs.errors import MissingPackageError, StoreLocked, StoreUnavailable, missing_package
from programs.retrieval.pipeline import IndexStores, Searcher
from programs.retrieval.plan import RetrievalPlan
from signatures.records import Hit, Passage

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(embedder: Any, corpus_k: Sequence[Passage]) -> Bench:
    return Bench(embedder, corpus_k)


# -- F3: the filter --------------------------------------------------------------------------


@pytest.mark.parametrize("routes", [["dense"], ["text"], ["dense", "text"], ["rewritten", "hypothetical"]])
def test_a_filter_holds_on_every_route(bench: Bench, routes: list[str]) -> None:
    texts = {"rewritten": "供应商底价", "hypothetical": "供应商底价"}
    assert "d3" in ids(bench.search("供应商底价", routes=routes, texts=texts))
    found = bench.search("供应商底价", routes=routes, texts=texts, category="公开")
    assert "d3" not in ids(found)
    assert found.degraded == ()
    assert {category for store in (bench.dense, bench.text) for _, category in store.searches[1:]} <= {"公开", None}


def test_a_store_that_ignores_its_filter_shows_nothing_by_it(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    ignoring = {"ignores_filters": True}
    bench = Bench(embedder, corpus_k, dense=ignoring, text=ignoring)
    found = bench.search("供应商底价", category="公开")
    assert set(ids(found)) == {"d1", "d2"}
    assert any("类别" in text for text in found.degraded)
    assert found.outages == ()


def test_a_reranker_never_sees_what_the_filter_excludes(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    seen: list[str] = []

    class Reranker:
        def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
            seen.extend(hit.passage.id for hit in hits)
            return list(hits)

    bench = Bench(embedder, corpus_k, Reranker(), dense={"ignores_filters": True}, text={"ignores_filters": True})
    bench.search("供应商底价", category="公开", rerank=True)
    assert set(seen) == {"d1", "d2"}


@pytest.mark.parametrize(
    "category",
    ['公开" or id > 0 or category == "x', "公开' or 1==1 or 'a'=='a", "a\\", "%", "公开\n", "*", "", "公" * 10_000],
)
def test_a_category_is_data_also_with_the_real_stores(stores_k: tuple[Any, Any], embedder: Any, category: str) -> None:
    """L1."""
    dense, text = stores_k
    searcher = Searcher({"documents": IndexStores(lambda: dense, lambda: text)}, embedder)
    found = asyncio.run(searcher.search(["供应商底价"], RetrievalPlan(), category=category))
    assert (found.hits, found.outages) == ((), ())
    right = asyncio.run(searcher.search(["供应商底价"], RetrievalPlan(), category="机密"))
    assert [hit.passage.id for hit in right.hits] == ["d3"]


# -- F7: outages -----------------------------------------------------------------------------


@pytest.mark.parametrize(("broken", "outage"), [("text", ("text",)), ("dense", ("dense",))])
def test_one_store_down_leaves_the_other_to_answer_and_says_so(
    embedder: Any, corpus_k: Sequence[Passage], broken: str, outage: tuple[str, ...]
) -> None:
    bench = Bench(embedder, corpus_k, **{broken: {"down": True}})
    found = bench.search("退货运费谁付")
    assert ids(found)[0] == "d1"
    assert found.outages == outage
    assert found.degraded == (f"{broken}: the store is down",)


def test_both_stores_down_is_no_empty_result(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    found = Bench(embedder, corpus_k, dense={"down": True}, text={"down": True}).search("退货")
    assert found.hits == ()
    assert found.outages == ("dense", "text")


def test_a_slow_store_is_given_up_after_its_time(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    bench = Bench(embedder, corpus_k, dense={"hangs": 30.0})
    started = time.monotonic()
    found = bench.search("退货运费谁付", route_timeout=0.3)
    assert time.monotonic() - started < 1
    bench.dense.release.set()
    assert found.outages == ("dense",)
    assert found.degraded == ("dense: 0.3 秒内没有回应",)
    assert ids(found) == ["d1"]


def test_a_search_ends_with_the_request(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    bench = Bench(embedder, corpus_k, dense={"hangs": 30.0})
    with budget.spending(Budget(seconds=0.3)):
        started = time.monotonic()
        found = bench.search("退货运费谁付")
        assert time.monotonic() - started < 1
    bench.dense.release.set()
    assert found.outages == ("dense",)


def test_routes_run_side_by_side(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    bench = Bench(embedder, corpus_k, dense={"hangs": 0.3}, text={"hangs": 0.3})
    started = time.monotonic()
    found = bench.search("退货", "发票", "运费", "底价", routes=["dense", "text"])
    assert time.monotonic() - started < 0.8  # one after the other, eight searches take 2.4 s
    assert found.outages == ()


def test_an_embedder_that_fails_leaves_the_text_route(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    bench = Bench(embedder, corpus_k)

    class Missing:
        name, dimension, max_tokens = "x", embedder.dimension, 512

        def encode_query(self, texts: Sequence[str]) -> Any:
            raise missing_package("sentence-transformers", "torch")

    bench.searcher = Searcher({"documents": IndexStores(lambda: bench.dense, lambda: bench.text)}, Missing())  # type: ignore[arg-type]
    found = bench.search("退货运费谁付")
    assert ids(found) == ["d1"]
    assert found.outages == ("dense",)
    assert "sentence-transformers" in found.degraded[0]


@pytest.mark.parametrize(
    "error",
    [StoreLocked("held", store="milvus"), StoreUnavailable("down", store="milvus"), MissingPackageError("needed")],
)
def test_a_store_that_cannot_be_opened_is_an_outage(
    embedder: Any, corpus_k: Sequence[Passage], error: Exception
) -> None:
    bench = Bench(embedder, corpus_k)

    def locked() -> Any:
        raise error

    bench.searcher = Searcher({"documents": IndexStores(locked, lambda: bench.text)}, embedder)
    found = bench.search("退货运费谁付")
    assert (ids(found), found.outages) == (["d1"], ("dense",))


def test_a_fault_in_our_own_code_is_not_hidden(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    bench = Bench(embedder, corpus_k)

    def wrong() -> Any:
        raise ZeroDivisionError

    bench.searcher = Searcher({"documents": IndexStores(wrong, lambda: bench.text)}, embedder)
    with pytest.raises(ZeroDivisionError):
        bench.search("退货")


def test_a_process_ends_although_a_store_hangs() -> None:
    program = """
        import asyncio, sys
        sys.path.insert(0, "tests")
        import numpy as np
        from memory_store import MemoryDenseStore, MemoryTextStore
        from programs.retrieval.pipeline import IndexStores, Searcher
        from programs.retrieval.plan import RetrievalPlan

        class Embedder:
            def encode_query(self, texts):
                return np.ones((len(texts), 3), dtype="float32")

        stores = IndexStores(lambda: MemoryDenseStore(3, hangs=60.0), MemoryTextStore)
        plan = RetrievalPlan(route_timeout=0.1)
        print(asyncio.run(Searcher({"documents": stores}, Embedder()).search(["x"], plan)).outages)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.strip() == "('dense',)"


def test_a_route_that_was_never_filled_is_named_and_is_not_an_empty_result(bench: Bench) -> None:
    found = bench.search("退货", routes=["questions"])
    assert (ids(found), found.outages) == ([], ("questions",))
    assert "question" in found.degraded[0]



def test_an_index_without_questions_is_searched_by_its_passages_as_if_the_route_were_not_there(bench: Bench) -> None:
    plain = bench.search("退货", routes=["dense", "text"])
    found = bench.search("退货", routes=["dense", "text", "questions", "summaries"])
    assert (found.outages, found.degraded) == ((), ())
    assert [(hit.passage.id, hit.score) for hit in found.hits] == [(hit.passage.id, hit.score) for hit in plain.hits]


def test_a_plan_whose_only_route_has_nothing_to_search_with_is_no_empty_result(bench: Bench) -> None:
    found = bench.search("退货", routes=["rewritten"])
    assert (ids(found), found.outages) == ([], ("rewritten",))
