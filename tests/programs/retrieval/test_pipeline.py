"""A plan is run as written; what fails is reported and never looks like "nothing found"."""

import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pipeline_bench import Bench, ids

from programs.errors import StoreUnavailable, missing_package
from programs.retrieval.base import Kind, Row
from signatures.records import Hit, Passage


@pytest.fixture
def bench(embedder: Any, corpus_k: Sequence[Passage]) -> Bench:
    return Bench(embedder, corpus_k)


# -- routes ----------------------------------------------------------------------------------


def test_dense_and_text_agree_on_the_right_passage(bench: Bench) -> None:
    found = bench.search("退货运费谁付")
    assert ids(found)[0] == "d1"
    assert found.hits[0].routes == ("dense", "text")
    assert found.hits[0].score == 1.0
    assert set(found.hits[0].raw) == {"dense", "text"}
    assert (found.degraded, found.outages) == ((), ())


@pytest.mark.parametrize(
    ("routes", "searches"),
    [
        (["dense"], (["passage"], [])),
        (["text"], ([], ["passage"])),
        (["questions", "summaries"], (["question", "summary"], [])),
        (["rewritten"], (["passage"], ["passage"])),
        (["hypothetical"], (["passage"], [])),
        ([], ([], [])),
    ],
)
def test_each_route_searches_what_it_says(
    bench: Bench, routes: list[str], searches: tuple[list[Kind], list[Kind]]
) -> None:
    bench.search("退货", routes=routes, texts={"rewritten": "退换货规定", "hypothetical": "本店支持退货。" * 20})
    assert sorted(kind for kind, _ in bench.dense.searches) == searches[0]
    assert [kind for kind, _ in bench.text.searches] == searches[1]


def test_a_route_without_its_text_is_left_out_and_is_no_outage(bench: Bench) -> None:
    found = bench.search("退货", routes=["dense", "rewritten", "hypothetical"])
    assert (found.outages, found.degraded) == ((), ())
    assert {route for hit in found.hits for route in hit.routes} == {"dense"}
    assert len(bench.dense.searches) == 1


def test_questions_and_summaries_lead_to_their_passage(bench: Bench, corpus_k: Sequence[Passage]) -> None:
    bench.add(
        Row("d1?1", "question", "买错了能退吗？", corpus_k[0]),
        Row("d1?2", "question", "几天内可以退？", corpus_k[0]),
        Row("d2~", "summary", "发票申请的地方", corpus_k[1]),
    )
    found = bench.search("几天内可以退？", routes=["questions", "summaries"])
    assert ids(found) == ["d1", "d2"]
    assert found.hits[0].routes == ("questions",)


def test_the_rewritten_query_finds_what_the_first_did_not(bench: Bench) -> None:
    found = bench.search("能不能还给你们", routes=["text", "rewritten"], texts={"rewritten": "七天无理由退货"})
    assert ids(found)[0] == "d1"
    assert found.hits[0].routes == ("rewritten",)


# -- numbers of the plan ---------------------------------------------------------------------


def test_top_k_and_rough_top_k_bound_what_comes_back(embedder: Any) -> None:
    bench = Bench(embedder, [Passage(id=f"p{n}", document_id="d", text=f"退货规定第{n}条") for n in range(9)])
    assert len(bench.search("退货规定", top_k=2).hits) == 2
    assert len(bench.search("退货规定", top_k=9, rough_top_k=3, routes=["text"]).hits) == 3


def test_hits_under_the_threshold_are_dropped_and_equal_ones_stay(bench: Bench) -> None:
    scores = [hit.score for hit in bench.search("退货", routes=["dense"]).hits]
    assert len(scores) == 3
    assert [hit.score for hit in bench.search("退货", routes=["dense"], score_threshold=scores[1]).hits] == scores[:2]


def test_weights_decide_between_the_routes(bench: Bench) -> None:
    def first(**weights: float) -> str:
        # BM25 knows the word, the embedding the meaning of the rest.
        return ids(bench.search("底价：想把买的东西还回去", weights=weights, rough_top_k=1))[0]

    assert first(text=3.0) == "d3"
    assert first(dense=3.0) == "d1"


# -- reranking -------------------------------------------------------------------------------


class ByText:
    """Likes passages that hold the query's last word; a stand-in with the contract of `Reranker`."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        self.queries.append(query)
        scores = [0.9 if query[-2:] in hit.passage.text else 0.1 for hit in hits]
        scored = [
            hit.model_copy(update={"score": score, "raw": {**hit.raw, "rerank": score}})
            for hit, score in zip(hits, scores, strict=True)
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.passage.id))


def test_reranking_changes_the_order_and_the_threshold_counts_after_it(
    embedder: Any, corpus_k: Sequence[Passage]
) -> None:
    bench = Bench(embedder, corpus_k, ByText())
    assert ids(bench.search("退货还是发票", rerank=True))[0] == "d2"
    assert ids(bench.search("退货还是发票", rerank=True, score_threshold=0.5)) == ["d2"]
    assert ids(bench.search("退货", rerank=False))[0] == "d1"


def test_what_is_far_worse_than_the_best_is_dropped_once_it_was_reranked(
    embedder: Any, corpus_k: Sequence[Passage]
) -> None:
    bench = Bench(embedder, corpus_k, ByText())
    scores = [hit.score for hit in bench.search("退货还是发票", rerank=True).hits]
    assert scores[0] > scores[1] > 0
    ratio = scores[1] / scores[0]
    assert len(bench.search("退货还是发票", rerank=True, relative_threshold=ratio).hits) >= 2
    assert ids(bench.search("退货还是发票", rerank=True, relative_threshold=ratio + 0.01)) == ["d2"]
    everything = bench.search("退货还是发票", rerank=False)
    assert ids(bench.search("退货还是发票", rerank=False, relative_threshold=1.0)) == ids(everything)


def test_each_part_of_a_comparison_is_reranked_by_its_own_words(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    reranker = ByText()
    found = Bench(embedder, corpus_k, reranker).search("怎么退货", "怎么开发票", rerank=True, top_k=2)
    assert sorted(reranker.queries) == ["怎么开发票", "怎么退货"]
    assert ids(found) == ["d1", "d2"]


@pytest.mark.parametrize("error", [StoreUnavailable("no memory", store="rerank"), missing_package("x", "torch")])
def test_a_reranker_that_fails_leaves_the_fused_order(
    embedder: Any, corpus_k: Sequence[Passage], error: Exception
) -> None:
    """E6."""

    class Broken:
        def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
            raise error

    bench = Bench(embedder, corpus_k, Broken())
    found = bench.search("退货运费谁付", rerank=True)
    assert ids(found) == ids(bench.search("退货运费谁付", rerank=False))
    assert found.degraded[0].startswith("rerank: ")
    assert found.outages == (), "everything was searched"


def test_a_reranker_that_hangs_is_given_up(embedder: Any, corpus_k: Sequence[Passage]) -> None:
    class Slow:
        def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
            time.sleep(0.8)
            return []

    found = Bench(embedder, corpus_k, Slow()).search("退货运费谁付", rerank=True, route_timeout=0.2)
    assert ids(found)[0] == "d1"
    assert found.degraded == ("rerank: 0.2 秒内没有回应",)


# -- several queries -------------------------------------------------------------------------


def test_both_sides_of_a_comparison_are_among_the_hits(embedder: Any) -> None:
    many = [Passage(id=f"a{n}", document_id="a", text=f"岚台标准版支持 {n} 个用户") for n in range(8)]
    one = Passage(id="b", document_id="b", text="企业版用户数不限")
    found = Bench(embedder, [*many, one]).search("岚台标准版支持多少用户", "企业版用户数", top_k=3)
    assert "b" in ids(found)[:2]
    assert len(found.hits) == 3
    assert len({hit.passage.id for hit in found.hits}) == 3


def test_scores_are_numbers_whatever_is_asked(bench: Bench) -> None:
    for query in ["，，。", "   ", "？", 'a) OR (* AND "退货~^', "{}", "\x00", "😀", "退" * 200]:
        found = bench.search(query)
        assert all(math.isfinite(hit.score) and 0 <= hit.score <= 1 for hit in found.hits)
        assert found.outages == ()
