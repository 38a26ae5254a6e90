"""Parts of a comparison, evidence that stays, language, and what a listener hears."""

from typing import Any

import pytest
from loop_scripts import NO, QUESTION, YES, hop_plan, in_turn, judged, relevant
from scripted_lm import Reply, helpful

from signatures.records import Passage


@pytest.mark.parametrize("broken", ["嗯……", {"query": ""}, Reply(status=500), "<think>没写完"])
def test_a_rewrite_that_fails_ends_the_loop_with_the_answer_so_far(make_rag: Any, broken: Any) -> None:
    grounding = in_turn(judged(0.1), judged(0.4))
    rewrite = in_turn({"query": "退货规定"}, broken)
    bench = make_rag(helpful(grounding=grounding, rewrite=rewrite, decompose=broken), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(5, routes=["text"], fallback_routes=[]))
    assert record.status == "best_effort"
    assert record.trace[1].decision in ("widen", "fallback")
    assert "七天" in record.answer


def test_a_bad_reply_is_not_repeated_from_a_cache(make_rag: Any) -> None:
    bench = make_rag(helpful(generate=in_turn("嗯……", {"answer": "本店支持七天无理由退货[1]。"})))
    assert bench.ask(QUESTION).status == "unavailable"
    assert bench.ask(QUESTION).status == "answered"


# -- deep_search -----------------------------------------------------------------------------

VERSIONS = [
    Passage(id=f"a{n}", document_id="a", text=f"岚盒 3.2 版的管理端口是 8080，说明之{n}。") for n in "甲乙丙丁戊己庚辛"
] + [Passage(id="b", document_id="b", text="岚盒 4.0 版的管理端口是 8443。")]
COMPARE = "岚盒 3.2 和 4.0 的管理端口有什么区别"
PARTS = {"parts": ["岚盒 3.2 版的管理端口是多少？", "岚盒 4.0 版的管理端口是多少？"]}


def test_both_parts_of_a_comparison_are_searched_and_present(make_rag: Any) -> None:
    bench = make_rag(
        helpful(decompose=PARTS, generate={"answer": "3.2 版是 8080[1]，4.0 版是 8443[2]。"}), passages=VERSIONS
    )
    record = bench.ask(COMPARE, strategy="deep_search", plan={"top_k": 3})
    assert record.status == "answered"
    assert list(record.trace[0].parts) == PARTS["parts"]
    texts = " ".join(passage.text for passage in record.passages)
    assert "8080" in texts
    assert "8443" in texts
    assert len(record.passages) == 3


def test_what_was_proved_stays_and_later_hops_add_to_it(make_rag: Any) -> None:
    bench = make_rag(
        helpful(
            decompose={"parts": ["岚盒 3.2 版的管理端口是多少？"]},
            rewrite={"query": "岚盒 4.0 版 8443"},
            relevance=relevant("之甲", "4.0"),
            grounding=in_turn(NO, YES),
            generate=in_turn({"answer": "3.2 版是 8080。"}, {"answer": "3.2 版是 8080，4.0 版是 8443。"}),
        ),
        passages=VERSIONS,
    )
    record = bench.ask(COMPARE, strategy="deep_search", plan={"top_k": 8, "rough_top_k": 8})
    assert (record.status, record.best_hop) == ("answered", 2)
    assert record.trace[0].kept[0] == "a甲"
    assert record.trace[1].hits[0].passage.id == "a甲", "proved passages come first"
    assert set(record.trace[1].kept) == {"a甲", "b"}
    assert bench.lm.count("decompose") == 1, "only the question is split"


def test_new_evidence_has_room_beside_what_was_proved(make_rag: Any) -> None:
    """A first hop that fills all places must not shut out what the second finds."""
    bench = make_rag(
        helpful(
            decompose={"parts": ["岚盒 3.2 版的管理端口是多少？"]},
            rewrite={"query": "4.0 8443"},
            grounding=in_turn(NO, YES),
            generate={"answer": "3.2 版是 8080[1]。"},
        ),
        passages=VERSIONS,
    )
    record = bench.ask(COMPARE, strategy="deep_search", plan={"top_k": 4, "rough_top_k": 4, "routes": ["text"]})
    assert len(record.trace[0].kept) == 4
    assert "b" not in record.trace[0].kept
    assert "b" in record.trace[1].kept
    assert len(record.trace[1].hits) == 4
    assert record.trace[1].kept[:2] == record.trace[0].kept[:2]


def test_other_strategies_start_each_hop_afresh(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO, rewrite={"query": "4.0 8443"}), passages=VERSIONS)
    record = bench.ask("岚盒 3.2 版的管理端口", plan=hop_plan(2, top_k=2, routes=["text"]))
    assert record.trace[1].kept[0] == "b"


@pytest.mark.parametrize("broken", ["嗯……", Reply(status=500), {"parts": []}])
def test_a_split_that_fails_searches_the_question_itself_and_says_so(make_rag: Any, broken: Any) -> None:
    record = make_rag(helpful(decompose=broken), passages=VERSIONS).ask(COMPARE, strategy="deep_search")
    assert record.trace[0].parts == ()
    assert record.trace[0].query == COMPARE
    assert any(text.startswith("decompose: ") for text in record.degraded)
    assert record.trace[0].hits


def test_a_paraphrase_that_fails_leaves_the_other_routes(make_rag: Any) -> None:
    routes = {"routes": ["dense", "text", "rewritten"]}
    record = make_rag(helpful(paraphrase="嗯……")).ask(QUESTION, strategy="standard_retrieval", plan=routes)
    assert record.status == "answered"
    assert any(text.startswith("rewritten: ") for text in record.degraded)


# -- E11: language ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "language", "start"),
    [("退货运费谁付", "中文", "知识库里没有"), ("Who pays for the return shipping?", "English", "The knowledge base")],
)
def test_the_answer_is_asked_for_in_the_language_of_the_question(
    make_rag: Any, question: str, language: str, start: str
) -> None:
    bench = make_rag(helpful(grounding=NO, rewrite={"query": "Who pays return shipping"}), endless=True)
    record = bench.ask(question, plan=hop_plan(2))
    assert record.trace[0].query == question, "the original is searched before any rewrite"
    assert {call.input("answer_language") for call in bench.lm.asked("generate")} == {language}
    assert make_rag(passages=[]).ask(question).answer.startswith(start)


# -- progress --------------------------------------------------------------------------------


def test_a_listener_hears_what_happens_in_order(make_rag: Any) -> None:
    from programs.progress import listening

    heard: list[tuple[str, int]] = []
    bench = make_rag(helpful(grounding=in_turn(NO, YES)), endless=True)
    with listening(lambda event: heard.append((event.stage, event.hop))):
        bench.ask(QUESTION)
    turn = ["searching", "found", "judged", "judged", "judged"]
    assert heard == [("routed", 0), *((s, 1) for s in turn), ("rewriting", 1), *((s, 2) for s in turn)]


def test_the_cost_of_the_hops_adds_up(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(3))
    assert len(record.trace) == 3
    assert sum(hop.usage.lm_calls for hop in record.trace) == record.usage.lm_calls - bench.lm.count("route")
    assert all(hop.usage.seconds > 0 for hop in record.trace)
    assert record.usage.store_seconds > 0
