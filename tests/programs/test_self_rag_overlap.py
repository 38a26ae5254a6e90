"""What waits for nothing: answers beside verdicts, a search beside the router; and what may then be used."""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from loop_scripts import ALL, QUESTION, TWO_ROUTES, YES, hop_plan, numbered_lines, relevant
from scripted_lm import Reply, helpful, scripted_lm

from programs.adaptive_rag import AdaptiveRAG
from programs.classifier import Opinion
from signatures.vocabulary import INTENTS


def slow(reply: Any, seconds: float) -> Any:
    made = reply if isinstance(reply, Reply) else Reply(json.dumps(reply, ensure_ascii=False))
    return Reply(made.text, probability=made.probability, delay=seconds)


ANSWERED = {"answer": "退货运费由买家承担[1]。"}


def meeting(**replies: Any) -> dict[str, Any]:
    """Replies that come only when all of them have been asked for; one that waits alone fails."""
    together = threading.Barrier(len(replies), timeout=10)

    def wait_for_the_others(reply: Any) -> Any:
        def script(call: Any) -> Any:
            try:
                together.wait()
            except threading.BrokenBarrierError:
                return Reply(status=400)
            return reply(call) if callable(reply) else reply

        return script

    return {name: wait_for_the_others(reply) for name, reply in replies.items()}


def test_an_answer_is_written_while_the_passages_are_judged(make_rag: Any) -> None:
    """Two rounds of the language model a hop, each of two calls that wait for one another."""
    first, second = meeting(relevance=helpful(), generate=ANSWERED), meeting(grounding=YES, utility=YES)
    record = make_rag(helpful(**first, **second), passages=ALL).ask(QUESTION, strategy="fast_retrieval")
    assert (record.status, record.usage.lm_calls, record.trace[0].overlapped) == ("answered", 4, True)


def test_overlap_can_be_switched_off(make_rag: Any) -> None:
    script = helpful(relevance=lambda call: slow(helpful()(call), 0.5), generate=ANSWERED)
    bench = make_rag(script, passages=ALL, overlap=False)
    record = bench.ask(QUESTION, strategy="fast_retrieval")
    assert (record.status, record.usage.lm_calls, record.trace[0].overlapped) == ("answered", 4, False)
    assert [call.signature for call in bench.lm.calls[:2]] == ["relevance", "generate"]
    assert record.usage.lm_seconds >= 0.5


@pytest.mark.parametrize(("down", "overlapped"), [(False, True), (True, False)])
def test_overlap_follows_the_endpoint_that_is_asked_now(make_rag: Any, down: bool, overlapped: bool) -> None:
    """The first takes many requests, the one behind it takes one at a time."""
    with scripted_lm(helpful()) as many, scripted_lm(helpful()) as single:
        bench = make_rag(passages=ALL, lm=f"{many.line} {single.line}?concurrency=1")
        if down:
            clients = bench.rag.resources.lms._clients
            clients["judge"][0].cool_until = time.monotonic() + 60
        record = bench.ask(QUESTION, strategy="fast_retrieval")
    assert record.status == "answered"
    assert record.trace[0].overlapped is overlapped


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
        for word in wanted:
            for number, line in enumerate(numbered_lines(call), start=1):
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


@pytest.mark.parametrize(("strategy", "intent", "hits"), [("fast_retrieval", "FACT_LOOKUP", 3), (None, "HOW_TO", 4)])
def test_a_guess_that_differs_only_in_how_many_passages_are_wanted_is_used(
    make_rag: Any, strategy: str | None, intent: str, hits: int
) -> None:
    """standard_retrieval is guessed; fast_retrieval wants fewer of the same."""
    bench = make_rag(helpful(route={**helpful()(route_call()), "intent": intent}), passages=ALL)
    record = bench.ask(QUESTION, plan={"routes": ["text", "dense"], "relative_threshold": 0.0})
    assert strategy in (None, record.strategy)
    assert len(record.trace[0].hits) == hits
    assert len(bench.text.searches) == len(bench.dense.searches) == 1
    bench.text.searches.clear()
    plain = bench.ask(QUESTION, strategy=record.strategy, plan={"routes": ["text", "dense"], "relative_threshold": 0.0})
    assert plain.trace[0].hits == record.trace[0].hits, "as without a guess"


def test_a_search_that_was_guessed_wrong_is_not_used(make_rag: Any) -> None:
    bench = make_rag(helpful(route={**helpful()(route_call()), "intent": "CODE_SEARCH"}), passages=ALL)
    assert bench.ask(QUESTION, plan={"routes": ["text"]}).strategy == "code_search"
    assert len(bench.text.searches) == 2
