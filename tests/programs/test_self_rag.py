"""The bounded loop: it ends, it answers with its best hop, and it says why it stopped.

Each test runs at least two hops where the loop is meant to go on.
"""

from typing import Any

import pytest
from loop_scripts import NO, QUESTION, YES, hop_plan, in_turn, judged, relevant
from scripted_lm import helpful

# -- C1: it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_judges_that_always_say_no_end_after_the_allowed_hops_with_an_answer(make_rag: Any, hops: int) -> None:
    bench = make_rag(helpful(grounding=NO), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(hops))
    assert bench.lm.count("generate") == hops
    assert (record.status, record.stop_reason) == ("best_effort", "max_hops")
    assert [hop.hop for hop in record.trace] == list(range(1, hops + 1))
    assert [hop.decision for hop in record.trace] == [*["rewrite", "widen"][: hops - 1], "fallback"]
    assert "七天无理由退货" in record.answer
    assert "没有通过核对" in record.answer
    assert "不对" in record.answer, "the reason is told"


def test_the_first_hop_that_passes_ends_the_loop(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=in_turn(NO, YES)), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(5))
    assert (record.status, record.stop_reason, record.best_hop) == ("answered", "judges_passed", 2)
    assert [hop.decision for hop in record.trace] == ["rewrite", "finish"]
    assert record.answer == "本店支持七天无理由退货[1]。"


def test_the_next_hop_searches_what_the_rewriter_wrote_and_knows_why(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=in_turn(NO, judged(0.4), YES)), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(3))
    first, second = bench.lm.asked("rewrite")
    assert first.input("tried_queries") == f"- {QUESTION}"
    assert first.input("reasons") == "- 不对"
    assert second.input("reasons") == "- 判为0.4"
    assert second.input("tried_queries").splitlines() == [f"- {QUESTION}", "- 改写后的检索语句 1"]
    assert [hop.query for hop in record.trace] == [QUESTION, "改写后的检索语句 1", "改写后的检索语句 2"]
    assert [hop.rewritten_query for hop in record.trace] == ["改写后的检索语句 1", "改写后的检索语句 2", ""]
    for call in bench.lm.asked("generate"):
        assert call.input("question") == QUESTION, "the answer is for the question, not for the query"


@pytest.mark.parametrize("hops", [0, -1, 11, None, "x"])
def test_a_senseless_number_of_hops_is_an_error_of_the_plan(make_rag: Any, hops: Any) -> None:
    from programs.errors import PlanError

    bench = make_rag()
    with pytest.raises(PlanError, match="max_hops"):
        bench.ask(QUESTION, plan=hop_plan(hops))
    assert bench.lm.calls == []


def test_the_setting_for_hops_wins_over_the_strategy_and_the_patch_over_both(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO), endless=True, max_hops=3)
    assert len(bench.ask(QUESTION).trace) == 3
    assert len(bench.ask(QUESTION, plan=hop_plan(1)).trace) == 1


# -- C3: no evidence -------------------------------------------------------------------------


def test_what_is_not_in_the_knowledge_base_is_said_to_be_not_there(make_rag: Any) -> None:
    bench = make_rag(helpful(relevance=relevant("火星")), endless=True, overlap=False)
    record = bench.ask("火星上有生命吗")
    assert (record.status, record.stop_reason, record.best_hop) == ("no_evidence", "no_evidence", 0)
    assert bench.lm.count("generate") == 0
    assert bench.lm.count("rewrite") == 1
    assert "知识库里没有找到" in record.answer
    assert (record.citations, record.passages) == ((), ())
    assert len(record.trace) == 2


def test_a_search_that_finds_nothing_asks_no_judge(make_rag: Any) -> None:
    bench = make_rag(passages=[])
    record = bench.ask("火星上有生命吗")
    assert (record.status, record.stop_reason) == ("no_evidence", "no_progress")
    assert [call.signature for call in bench.lm.calls] == ["route", "rewrite"]


@pytest.mark.parametrize(
    "text", ["", "  ", "[1]", " [1][2] ", "资料里没有提到。", "知识库没有，不过一般来说有", "I don't know."]
)
def test_a_generator_that_finds_no_answer_is_believed(make_rag: Any, text: str) -> None:
    bench = make_rag(helpful(generate={"answer": text}), endless=True)
    record = bench.ask(QUESTION)
    assert (record.status, record.stop_reason) == ("no_evidence", "no_evidence")
    assert len(record.trace) == 2
    assert "不过一般" not in record.answer
    assert [hop.answer for hop in record.trace] == ["", ""]


def test_the_second_hop_can_find_what_the_first_did_not(make_rag: Any) -> None:
    bench = make_rag(helpful(generate=in_turn({"answer": ""}, {"answer": "本店支持七天无理由退货[1]。"})), endless=True)
    record = bench.ask(QUESTION)
    assert (record.status, record.best_hop) == ("answered", 2)


# -- the best hop ----------------------------------------------------------------------------


def test_the_best_hop_is_returned_and_marked_not_the_last(make_rag: Any) -> None:
    texts = [f"本店支持七天无理由退货，第{name}稿[1]。" for name in "甲乙丙"]
    bench = make_rag(
        helpful(
            generate=in_turn(*({"answer": text} for text in texts)),
            grounding=in_turn(judged(0.1), judged(0.4), judged(0.2)),
        ),
        endless=True,
    )
    record = bench.ask(QUESTION, plan=hop_plan(3))
    assert (record.best_hop, record.status) == (2, "best_effort")
    assert record.answer.startswith(texts[1])
    assert "判为0.4" in record.answer, "the reason is that of the best hop"
    assert [hop.answer for hop in record.trace] == texts


def test_a_hop_that_passes_more_judges_is_better_than_one_with_higher_scores(make_rag: Any) -> None:
    bench = make_rag(
        helpful(
            generate=in_turn({"answer": "甲稿[1]。"}, {"answer": "乙稿[1]。"}),
            grounding=in_turn(judged(0.49), judged(0.6)),
            utility=in_turn(judged(0.49), judged(0.2)),
        ),
        endless=True,
    )
    assert bench.ask(QUESTION, plan=hop_plan(2)).best_hop == 2


def test_of_equal_hops_the_first_is_taken(make_rag: Any) -> None:
    assert make_rag(helpful(grounding=NO), endless=True).ask(QUESTION, plan=hop_plan(3)).best_hop == 1


def test_a_hop_without_an_answer_never_wins(make_rag: Any) -> None:
    script = helpful(generate=in_turn({"answer": "甲稿[1]。"}, {"answer": ""}), grounding=judged(0.0))
    bench = make_rag(script, endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(2))
    assert (record.best_hop, record.status) == (1, "best_effort")


def test_an_unknown_verdict_is_worse_than_a_low_one_and_never_passes(make_rag: Any) -> None:
    bench = make_rag(
        helpful(
            generate=in_turn({"answer": "甲稿[1]。"}, {"answer": "乙稿[1]。"}),
            utility=in_turn("嗯……", "嗯……", judged(0.3)),
        ),
        endless=True,
    )
    record = bench.ask(QUESTION, plan=hop_plan(2))
    assert record.trace[0].utility.unknown
    assert record.trace[0].utility.error_kind == "parse"
    assert (record.status, record.best_hop) == ("best_effort", 2)
