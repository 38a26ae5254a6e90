"""The loop does not turn in circles: each hop looks at something new, in another way, or it ends."""

from typing import Any

import pytest
from loop_scripts import ALL, NO, QUESTION, YES, hop_plan, in_turn, judged, numbered_lines, relevant
from scripted_lm import Reply, helpful

from programs import decisions


def looked_at(record: Any) -> list[set[str]]:
    return [{hit.passage.id for hit in hop.hits} for hop in record.trace]


@pytest.mark.parametrize("same", [QUESTION, f"  {QUESTION}？ ", "退貨運費誰付", "“退货运费谁付”"])
def test_a_rewrite_that_changes_nothing_is_not_searched_again(make_rag: Any, same: str) -> None:
    bench = make_rag(helpful(grounding=NO, rewrite={"query": same}), passages=ALL[:2])
    record = bench.ask(QUESTION, plan=hop_plan(5, top_k=5))
    assert (record.status, record.stop_reason) == ("best_effort", "no_progress")
    assert len(record.trace) == 1
    assert bench.lm.count("rewrite") == 1
    assert bench.lm.count("generate") == 1


def test_other_words_that_find_the_same_passages_cost_no_answer_and_no_verdict(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO, rewrite={"query": "谁来承担退货的运费"}), passages=ALL)
    record = bench.ask(QUESTION, plan=hop_plan(5, top_k=4))
    assert record.stop_reason == "no_progress"
    assert looked_at(record) == [{"a", "b", "c", "d"}]
    assert (bench.lm.count("relevance"), bench.lm.count("generate"), bench.lm.count("grounding")) == (1, 1, 1)


def test_after_other_words_the_parts_are_searched_and_then_what_nobody_looked_at(make_rag: Any) -> None:
    bench = make_rag(
        helpful(
            grounding=NO,
            rewrite={"query": "退货七天"},
            decompose={"parts": ["换货的运费谁付？", "退货须在几天内？"]},
            generate=in_turn(*({"answer": f"{name}稿：可以退货[1]。"} for name in "甲乙丙丁")),
        ),
        passages=ALL,
    )
    record = bench.ask(QUESTION, plan=hop_plan(9, top_k=1, routes=["text"], fallback_routes=["dense"]))
    assert [hop.decision for hop in record.trace] == ["rewrite", "decompose", "widen", "fallback"]
    assert record.stop_reason == "no_progress"
    assert looked_at(record)[0] == {"a"}
    assert looked_at(record)[1] == {"b"}
    seen: set[str] = set()
    for found in looked_at(record):
        assert found - seen, "every hop looks at something new"
        seen |= found
    assert bench.lm.count("rewrite") == bench.lm.count("decompose") == 1


def test_a_hop_that_comes_nearer_may_be_rewritten_again(make_rag: Any) -> None:
    grounding = in_turn(judged(0.1), judged(0.3), judged(0.45), YES)
    bench = make_rag(helpful(grounding=grounding), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(9))
    assert [hop.decision for hop in record.trace] == ["rewrite", "rewrite", "rewrite", "finish"]


def test_a_question_of_which_nothing_is_known_is_not_split(make_rag: Any) -> None:
    bench = make_rag(helpful(relevance=relevant("火星")), endless=True)
    record = bench.ask("火星上有生命吗", plan=hop_plan(9))
    assert bench.lm.count("decompose") == 0
    assert (record.status, record.stop_reason) == ("no_evidence", "no_progress")


def test_new_passages_that_are_not_relevant_do_not_make_the_same_answer_again(make_rag: Any) -> None:
    bench = make_rag(
        helpful(
            grounding=NO,
            relevance=relevant("买家"),
            rewrite={"query": "管理端口 8080 退货运费"},
            generate={"answer": "退货运费由买家承担。"},
        ),
        passages=ALL,
    )
    record = bench.ask(QUESTION, plan=hop_plan(2, top_k=2, routes=["text"]))
    assert len(record.trace) == 2
    assert record.trace[1].kept == record.trace[0].kept == ("a",)
    assert (record.trace[1].answer, record.best_hop) == ("", 1)
    assert bench.lm.count("grounding") == 1


def test_routes_that_the_user_names_are_the_only_ones(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO), passages=ALL)
    record = bench.ask(QUESTION, plan=hop_plan(5, top_k=1, routes=["text"]))
    assert {route for hop in record.trace for hit in hop.hits for route in hit.routes} == {"text"}


def test_a_passage_is_judged_once_in_a_request(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(3))
    assert len(record.trace) == 3
    shown = [line for call in bench.lm.asked("relevance") for line in numbered_lines(call)]
    assert len(shown) == len(set(shown)) == len(set.union(*looked_at(record)))


def test_a_verdict_is_paid_for_once(make_rag: Any) -> None:
    bench = make_rag(passages=ALL)
    first = bench.ask(QUESTION)
    second = bench.ask(QUESTION)
    assert second.answer == first.answer
    assert [call.signature for call in bench.lm.calls][-2:] == ["route", "generate"]
    hop = second.trace[0]
    assert (hop.relevance.cached, hop.grounding.cached, hop.utility.cached) == (True, True, True)
    assert hop.grounding.score == first.trace[0].grounding.score
    assert hop.grounding.reason == first.trace[0].grounding.reason
    assert not first.trace[0].grounding.cached


def test_a_verdict_that_failed_is_asked_for_again(make_rag: Any) -> None:
    bench = make_rag(helpful(utility=in_turn("嗯……", "嗯……", YES)), passages=ALL)
    assert bench.ask(QUESTION, plan=hop_plan(1)).trace[0].utility.unknown
    assert bench.ask(QUESTION, plan=hop_plan(1)).status == "answered"


def test_another_prompt_of_a_judge_is_another_judge(make_rag: Any) -> None:
    bench = make_rag(passages=ALL)
    bench.ask(QUESTION)
    judge = bench.rag.judges.utility.judge
    judge.signature = judge.signature.with_instructions("判断是否有用。")
    assert not bench.ask(QUESTION).trace[0].utility.cached


def test_a_stand_in_does_not_overrule_the_no_of_an_earlier_hop(make_rag: Any) -> None:
    """The words of an answer that was judged wrong stand in the passages, so the word check alone would pass it."""
    bench = make_rag(helpful(grounding=in_turn(NO, "嗯……")), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(2))
    assert len(record.trace) == 2
    assert record.trace[1].grounding.score == pytest.approx(0.1, abs=0.01)
    assert (record.status, record.stop_reason) == ("best_effort", "max_hops")


def test_an_answer_with_an_invented_number_is_not_told(make_rag: Any) -> None:
    bench = make_rag(helpful(generate={"answer": "退货要付 45 元[1]。"}), passages=ALL)
    record = bench.ask(QUESTION)
    assert (record.status, record.best_hop, record.passages) == ("no_evidence", 0, ())
    assert "45" not in record.answer
    assert record.trace[0].answer == "退货要付 45 元[1]。", "the trace shows what was written"


def test_a_doubted_answer_is_preferred_to_one_with_an_invented_number(make_rag: Any) -> None:
    answers = in_turn({"answer": "退货运费由买家承担[1]。"}, {"answer": "退货要付 45 元[1]。"})
    record = make_rag(helpful(generate=answers, grounding=NO), endless=True).ask(QUESTION, plan=hop_plan(2))
    assert (record.status, record.best_hop) == ("best_effort", 1)
    assert "买家" in record.answer


@pytest.mark.parametrize("answer", ["退货要付 45 元[1]。", ""])
def test_a_threshold_of_zero_makes_no_rule_a_yes(make_rag: Any, answer: str) -> None:
    thresholds = {"relevance": 0.0, "grounding": 0.0, "utility": 0.0}
    bench = make_rag(helpful(generate={"answer": answer}), passages=ALL, thresholds=thresholds)
    record = bench.ask(QUESTION, plan=hop_plan(1))
    assert (record.status, record.best_hop) == ("no_evidence", 0)
    assert record.stop_reason != "judges_passed"
    assert not record.trace[0].grounding.passed


@pytest.mark.parametrize(
    ("rewrite", "decompose"), [("嗯……", None), ({"query": QUESTION}, "嗯……"), ("嗯……", Reply("", finish="length"))]
)
def test_a_reply_that_cannot_be_read_gives_way_to_the_next_way(make_rag: Any, rewrite: Any, decompose: Any) -> None:
    script = helpful(grounding=NO, rewrite=rewrite, **({"decompose": decompose} if decompose else {}))
    bench = make_rag(script, passages=ALL)
    record = bench.ask(QUESTION, plan=hop_plan(5, top_k=1, routes=["text"], fallback_routes=["dense"]))
    assert len(record.trace) > 1
    assert record.trace[0].decision == "widen"
    assert any("the reply does not fit" in text for text in record.degraded)


def test_where_no_way_is_left_an_unreadable_reply_is_the_reason(make_rag: Any) -> None:
    record = make_rag(helpful(grounding=NO, rewrite="嗯……"), passages=ALL[:1]).ask(QUESTION, plan=hop_plan(5))
    assert (len(record.trace), record.stop_reason) == (1, "rewrite_failed")


# -- the rules -------------------------------------------------------------------------------


def test_an_answer_that_is_none_is_never_answered() -> None:
    ends = {"stop": "judges_passed", "searched": True}
    assert decisions.status_of(passed=True, answered=False, **ends) == "no_evidence"
    assert decisions.status_of(passed=True, answered=True, **ends) == "answered"
    assert not decisions.reaches(0.0, 0.0)
    assert decisions.reaches(0.001, 0.0)


def test_flat_verdicts_are_no_progress() -> None:
    assert decisions.progressed([], (4, 0.1, 0.1, 0.1))
    assert not decisions.progressed([(4, 0.10, 0.1, 0.1)], (4, 0.12, 0.1, 0.1))
    assert decisions.progressed([(4, 0.10, 0.1, 0.1)], (4, 0.20, 0.1, 0.1))
    assert decisions.progressed([(4, 0.9, 0.9, 0.9)], (5, 0.1, 0.1, 0.1))
    assert not decisions.progressed([(4, 0.5, 0.5, 0.5), (4, 0.1, 0.1, 0.1)], (4, 0.3, 0.3, 0.3))
