"""Calls, tokens and time of one question are limited, and the best answer so far is given."""

import time
from typing import Any

import pytest
from loop_scripts import NO, QUESTION, hop_plan, in_turn
from scripted_lm import Reply, helpful

# -- limits ----------------------------------------------------------------------------------


def test_when_the_calls_are_used_up_the_best_answer_so_far_is_given(make_rag: Any) -> None:
    bench = make_rag(
        helpful(grounding=NO), endless=True, overlap=False, max_lm_calls=7
    )  # route, four, rewrite, one of the second hop
    record = bench.ask(QUESTION, plan=hop_plan(5))
    assert (record.status, record.stop_reason, record.best_hop) == ("best_effort", "budget", 1)
    assert record.usage.lm_calls == len(bench.lm.calls) == 7
    assert len(record.trace) == 2


def test_when_the_tokens_are_used_up_the_best_answer_so_far_is_given(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=NO), endless=True, max_tokens=4000)
    record = bench.ask(QUESTION, plan=hop_plan(10))
    assert (record.status, record.stop_reason) == ("best_effort", "budget")
    assert len(record.trace) < 10
    assert "七天" in record.answer


def test_when_the_calls_do_not_suffice_for_one_answer_nothing_is_claimed(make_rag: Any) -> None:
    record = make_rag(max_lm_calls=2).ask(QUESTION)
    assert (record.status, record.stop_reason) == ("unavailable", "budget")


@pytest.mark.parametrize("role", ["route", "relevance", "generate", "utility", "rewrite"])
def test_the_deadline_holds_wherever_the_model_hangs(make_rag: Any, role: str) -> None:
    """K3: the result is there within a second after the deadline, and calls are not multiplied."""
    script = helpful(**{"grounding": NO, role: Reply("", delay=60)})
    bench = make_rag(script, endless=True, deadline=0.7)
    started = time.monotonic()
    record = bench.ask(QUESTION, plan=hop_plan(3))
    assert time.monotonic() - started < 1.7
    assert record.stop_reason == "deadline"
    assert bench.lm.count(role) == 1
    # Passages that could not be judged are kept, and the answer was written meanwhile.
    written = role in ("relevance", "utility", "rewrite")
    assert record.status == ("best_effort" if written else "unavailable")
    assert ("七天" in record.answer) == written


def test_the_check_stands_in_for_a_grounding_judge_that_has_no_time_left(make_rag: Any) -> None:
    started = time.monotonic()
    record = make_rag(helpful(grounding=Reply("", delay=60)), deadline=0.7).ask(QUESTION)
    assert time.monotonic() - started < 1.7
    verdict = record.trace[0].grounding
    assert (verdict.source, verdict.error_kind, verdict.score) == ("check", "deadline", 1.0)


def test_a_deadline_in_the_second_hop_gives_the_first(make_rag: Any) -> None:
    generate = in_turn({"answer": "本店支持七天无理由退货[1]。"}, Reply("", delay=60))
    record = make_rag(helpful(grounding=NO, generate=generate), endless=True, deadline=0.9).ask(
        QUESTION, plan=hop_plan(3)
    )
    assert (record.status, record.stop_reason, record.best_hop) == ("best_effort", "deadline", 1)
    assert len(record.trace) == 2
