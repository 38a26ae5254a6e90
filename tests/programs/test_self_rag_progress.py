"""The loop does not turn in circles: each hop looks at something new, in another way, or it ends."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from loop_scripts import NO, QUESTION, YES, hop_plan, in_turn, judged, relevant
from scripted_lm import Reply, helpful

from programs import decisions
from programs.adaptive_rag import AdaptiveRAG
from programs.classifier import Opinion
from signatures.records import Passage
from signatures.vocabulary import INTENTS

ALL = [
    Passage(id="a", document_id="a", text="退货运费由买家承担。"),
    Passage(id="b", document_id="b", text="退货须在七天内提出。"),
    Passage(id="c", document_id="c", text="换货的运费由卖家承担。"),
    Passage(id="d", document_id="d", text="岚盒的管理端口是 8080。"),
]
TWO_ROUTES = {"routes": ["dense", "text"]}


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


def numbered_lines(call: Any) -> list[str]:
    lines = call.body["messages"][0]["content"].splitlines()
    return [line for place, line in enumerate(lines) if place and lines[place - 1].startswith("[")]


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


# -- the critical path -----------------------------------------------------------------------


def slow(reply: Any, seconds: float) -> Any:
    made = reply if isinstance(reply, Reply) else Reply(json.dumps(reply, ensure_ascii=False))
    return Reply(made.text, probability=made.probability, delay=seconds)


def test_an_answer_is_written_while_the_passages_are_judged(make_rag: Any) -> None:
    """Two rounds of the language model a hop: four calls of 0.4 s take two of them, not four."""
    script = helpful(
        relevance=lambda call: slow(helpful()(call), 0.4),
        generate=slow({"answer": "退货运费由买家承担[1]。"}, 0.4),
        grounding=slow(YES, 0.4),
        utility=slow(YES, 0.4),
    )
    beside = make_rag(script, passages=ALL).ask(QUESTION, strategy="fast_retrieval")
    after = make_rag(script, passages=ALL, overlap=False).ask(QUESTION, strategy="fast_retrieval")
    assert beside.status == after.status == "answered"
    assert beside.usage.lm_calls == after.usage.lm_calls == 4
    assert (beside.trace[0].overlapped, after.trace[0].overlapped) == (True, False)
    assert beside.usage.lm_seconds < after.usage.lm_seconds
    assert after.usage.lm_seconds >= 1.2


def test_the_answer_is_given_up_where_no_passage_is_relevant(make_rag: Any) -> None:
    script = helpful(relevance=relevant("火星"), generate=slow({"answer": "没有人要的答案[1]。"}, 20.0))
    bench = make_rag(script, passages=ALL)
    record = bench.ask(QUESTION, strategy="fast_retrieval", plan=hop_plan(1))
    assert record.status == "no_evidence"
    assert record.usage.seconds < 10
    assert record.trace[0].shown == ()


def test_an_overlapped_answer_counts_as_one_from_what_stayed(make_rag: Any) -> None:
    """All hits were shown, though only one is relevant: its mark and its number are those of what stayed."""
    bench = make_rag(helpful(relevance=relevant("七天"), generate=cites("七天")), passages=ALL)
    record = bench.ask("退货运费 七天", strategy="fast_retrieval", plan=TWO_ROUTES)
    hop = record.trace[0]
    assert (record.status, hop.overlapped, hop.written_again) == ("answered", True, False)
    assert (hop.kept, hop.shown) == (("b",), ("b",))
    assert [citation.passage_id for citation in record.citations] == ["b"]
    [judged_on] = bench.lm.asked("grounding")
    assert judged_on.passage_count == 1
    assert bench.lm.count("generate") == 1


def test_an_overlapped_answer_from_a_rejected_passage_is_written_again(make_rag: Any) -> None:
    bench = make_rag(helpful(relevance=relevant("七天"), generate=cites("卖家", "七天")), passages=ALL)
    record = bench.ask("换货 退货运费 七天", strategy="fast_retrieval", plan=TWO_ROUTES)
    hop = record.trace[0]
    assert (hop.overlapped, hop.written_again, hop.shown) == (True, True, ("b",))
    assert [call.passage_count for call in bench.lm.asked("generate")] == [3, 1]
    assert "卖家" not in record.answer
    assert [citation.passage_id for citation in record.citations] == ["b"]


def test_an_overlapped_answer_that_left_out_what_stayed_is_written_again(make_rag: Any) -> None:
    """The prompt with all hits did not fit, and what is relevant was among those that were cut."""

    def script(call: Any) -> Any:
        if call.passage_count > 2:
            return Reply(status=400, error={"message": "maximum context length is 10 tokens"})
        return cites("七天", "退货", "卖家")(call)

    bench = make_rag(helpful(relevance=relevant("8080"), generate=script), passages=ALL)
    record = bench.ask("退货运费 换货 管理端口 8080", strategy="fast_retrieval", plan={**TWO_ROUTES, "top_k": 4})
    [hop] = record.trace[:1]
    assert hop.kept == ("d",)
    assert (hop.written_again, hop.shown) == (True, ("d",))


def cites(*wanted: str) -> Any:
    """Answers with the first passage that holds one of the words, the first wanted first."""

    def script(call: Any) -> Any:
        lines = [line for line in call.body["messages"][0]["content"].splitlines() if "。" in line]
        for word in wanted:
            for number, line in enumerate(lines[-call.passage_count :], start=1):
                if word in line:
                    return {"answer": f"{line}[{number}]"}
        return {"answer": ""}

    return script


def test_where_requests_wait_for_each_other_only_relevant_passages_are_shown(make_rag: Any) -> None:
    bench = make_rag(helpful(relevance=relevant("七天")), passages=ALL, options="?concurrency=1")
    record = bench.ask("退货运费 七天", strategy="fast_retrieval")
    assert (record.trace[0].overlapped, record.trace[0].shown) == (False, ("b",))


def test_the_search_begins_while_the_router_thinks(make_rag: Any) -> None:
    searched: list[int] = []

    def route(call: Any) -> Any:
        deadline = time.monotonic() + 5
        while not bench.text.searches and time.monotonic() < deadline:
            time.sleep(0.02)
        searched.append(len(bench.text.searches))
        return {**helpful()(call), "intent": "HOW_TO", "strategy": "standard_retrieval"}

    bench = make_rag(helpful(route=route), passages=ALL)
    record = bench.ask(QUESTION)
    assert record.strategy == "standard_retrieval"
    assert searched == [1], "begun before the router's reply"
    assert len(bench.text.searches) == 1, "and not done again"


def test_nothing_is_searched_for_what_is_probably_small_talk(make_rag: Any) -> None:
    bench = make_rag(helpful(route={**helpful()(route_call()), "intent": "CHIT_CHAT"}), passages=ALL)
    shares = {intent: 0.7 if intent == "CHIT_CHAT" else 0.06 for intent in INTENTS}
    guess = Opinion(probabilities=shares, clarify=0.1, clear=True, sure=False, must_ask=False)
    classifier = SimpleNamespace(classify=lambda *_: guess, lm_weight=lambda _: 1.0)
    rag = AdaptiveRAG(replace(bench.rag.resources, classifier=classifier))
    assert rag(question="在吗").record.strategy == "direct_reply"
    assert bench.lm.count("route") == 1
    assert bench.text.searches == []


def route_call() -> Any:
    return SimpleNamespace(signature="route")


def test_a_search_that_was_guessed_wrong_is_not_used(make_rag: Any) -> None:
    bench = make_rag(passages=ALL)
    record = bench.ask(QUESTION)  # standard_retrieval is guessed, fast_retrieval is right
    assert record.strategy == "fast_retrieval"
    assert len(record.trace[0].hits) == 3


# -- the rules -------------------------------------------------------------------------------


def test_flat_verdicts_are_no_progress() -> None:
    assert decisions.progressed([], (4, 0.1, 0.1, 0.1))
    assert not decisions.progressed([(4, 0.10, 0.1, 0.1)], (4, 0.12, 0.1, 0.1))
    assert decisions.progressed([(4, 0.10, 0.1, 0.1)], (4, 0.20, 0.1, 0.1))
    assert decisions.progressed([(4, 0.9, 0.9, 0.9)], (5, 0.1, 0.1, 0.1))
    assert not decisions.progressed([(4, 0.5, 0.5, 0.5), (4, 0.1, 0.1, 0.1)], (4, 0.3, 0.3, 0.3))
