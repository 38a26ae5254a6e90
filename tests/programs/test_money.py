"""Money of one question: counted by the endpoint that answered, shown, and limited."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from endpoint_requests import failure, request
from loop_scripts import NO, QUESTION, hop_plan, in_turn, judged, relevant
from scripted_lm import Reply, ScriptedLM, closed_port, helpful, scripted_lm

from programs import cli
from programs.budget import Budget
from programs.rendering import print_answer
from signatures.records import Answer

EACH = 1_000_000
"""As a price: one token costs one."""
PRICED = f"?prompt_price={EACH}&completion_price={EACH}"


def spends(prompt: int, completion: int = 0, cached: int = 0, **reply: Any) -> Reply:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return Reply('{"answer": "七天"}', usage={**usage, "prompt_tokens_details": {"cached_tokens": cached}}, **reply)


def priced(lm: ScriptedLM, prompt: float, completion: float, cached: float | None = None) -> str:
    more = "" if cached is None else f"&cached_price={cached * EACH}"
    return f"{lm.line}?prompt_price={prompt * EACH}&completion_price={completion * EACH}{more}"


# -- counting --------------------------------------------------------------------------------


async def test_cached_tokens_cost_what_the_endpoint_says() -> None:
    account = Budget()
    with scripted_lm(lambda _: spends(100, 10, cached=60)) as lm:
        await request(priced(lm, 2, 8, cached=0.5), account)
    assert account.usage().cost == pytest.approx(40 * 2 + 60 * 0.5 + 10 * 8)


async def test_a_failover_costs_what_the_endpoint_costs_that_answered() -> None:
    account = Budget()
    with scripted_lm(lambda _: Reply(status=500)) as dear, scripted_lm(lambda _: spends(100, 10)) as cheap:
        await request(f"{priced(dear, 50, 50)} {priced(cheap, 1, 2)}", account)
    assert account.usage().cost == pytest.approx(120)


async def test_a_reply_that_is_thrown_away_was_paid_for() -> None:
    """It was cut, and asked for again: the tokens were counted both times."""
    account = Budget()
    replies = [spends(100, 10, finish="length"), spends(100, 20)]
    with scripted_lm(lambda _: replies.pop(0)) as lm:
        await request(priced(lm, 1, 1), account)
    assert account.usage().cost == pytest.approx(230)


async def test_endpoints_of_two_prices_add_up_and_one_without_makes_the_sum_unknown() -> None:
    account = Budget()
    with scripted_lm(lambda _: spends(100)) as one, scripted_lm(lambda _: spends(10)) as other:
        await request(priced(one, 1, 1), account)
        await request(priced(other, 3, 1), account)
        assert account.usage().cost == pytest.approx(130)
        await request(other.line, account)
        assert account.usage().cost is None
        # What was spent since then is known all the same.
        before = account.usage()
        await request(priced(one, 1, 1), account)
    assert account.usage(before).cost == pytest.approx(100)
    assert account.usage().cost is None


@pytest.mark.parametrize("usage", [{"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": None}])
async def test_an_endpoint_that_reports_no_tokens_is_not_taken_for_free(usage: dict[str, Any]) -> None:
    account = Budget(max_cost=1000)
    with scripted_lm(lambda _: Reply('{"answer": "七天"}', usage=usage)) as lm:
        await request(priced(lm, 1, 1), account)
        assert account.usage().cost is None
        assert (await failure(priced(lm, 1, 1), account)).kind == "budget"
    assert len(lm.calls) == 1
    assert "花费无法得知" in account.degraded[0]


@pytest.mark.parametrize(
    ("lost", "options"),
    [
        (Reply(delay=60), "&timeout=0.3"),
        (Reply("没有收完", cut=True), ""),
        (Reply(raw=b"<html>"), ""),
        (Reply(status=504), ""),
    ],
)
async def test_a_request_that_was_sent_and_not_answered_is_not_taken_for_free(lost: Reply, options: str) -> None:
    account = Budget(max_cost=1_000_000)
    with scripted_lm(lambda _: lost) as lm:
        await failure(f"{priced(lm, 1, 1)}{options}", account)
        assert len(lm.calls) == account.usage().lm_calls == 1
        assert account.usage().cost is None
        assert "花费无法得知" in account.degraded[-1]
        # Its most is known: the limit can be checked, and forbids the next one only where it may be reached.
        assert account.exhausted() is None
        account.max_cost = 100
        assert (await failure(priced(lm, 1, 1), account)).kind == "budget"


@pytest.mark.parametrize("refusal", [Reply(status=400), Reply(status=500), Reply(raw=b'{"error": {"message": "no"}}')])
async def test_a_refusal_costs_nothing(refusal: Reply) -> None:
    account = Budget(max_cost=250)
    with scripted_lm(lambda _: refusal) as lm, closed_port() as closed:
        await failure(f"{priced(lm, 1, 1)} gone@{closed}?prompt_price={EACH}&completion_price={EACH}", account)
        assert len(lm.calls) == 1
    assert account.usage().cost == 0.0


async def test_what_is_free_is_free_whatever_comes_of_it() -> None:
    account = Budget(max_cost=250)
    with scripted_lm(lambda _: Reply(delay=60)) as lm:
        await failure(f"{priced(lm, 0, 0)}&timeout=0.3", account)
    assert (account.usage().cost, account.exhausted(), account.degraded) == (0.0, None, [])


def test_an_answer_that_is_given_up_was_paid_for(make_rag: Any) -> None:
    """It was begun beside the relevance judge, which kept nothing."""
    generate = Reply('{"answer": "没有人要的答案[1]。"}', delay=60)
    script = helpful(relevance=lambda call: replace(relevant("火星")(call), delay=0.5), generate=generate)
    record = make_rag(script, options=PRICED).ask(QUESTION, strategy="fast_retrieval", plan=hop_plan(1))
    assert record.trace[0].overlapped and not record.trace[0].shown
    assert (record.usage.cost, record.trace[0].usage.cost) == (None, None)
    limited = make_rag(script, options=PRICED, max_cost=100_000, endless=True)
    record = limited.ask(QUESTION, strategy="fast_retrieval", plan=hop_plan(2))
    assert (record.status, record.usage.cost, len(record.trace)) == ("no_evidence", None, 2)
    assert any("花费无法得知" in note for note in record.degraded)


def test_nothing_asked_costs_nothing() -> None:
    assert Budget(max_cost=1).usage().cost == 0.0


# -- the limit -------------------------------------------------------------------------------


async def test_the_limit_ends_the_calls_and_is_passed_by_one_at_most() -> None:
    account = Budget(max_cost=250)
    with scripted_lm(lambda _: spends(100)) as lm:
        for _ in range(3):
            await request(priced(lm, 1, 1), account)
        assert (await failure(priced(lm, 1, 1), account)).kind == "budget"
    assert (len(lm.calls), account.usage().cost) == (3, 300)


async def test_amounts_that_sum_up_to_the_limit_reach_it() -> None:
    account = Budget(max_cost=1.0)
    for _ in range(10):  # which is 0.9999999999999999 where it is added up carelessly
        assert account.exhausted() is None
        account.count_tokens(prompt=1, cached=0, completion=0, cost=0.1)
    assert account.exhausted() == "budget"


async def test_calls_side_by_side_pass_the_limit_by_one_at_most() -> None:
    account = Budget(max_cost=250)
    with scripted_lm(lambda _: spends(100, delay=0.02)) as lm:
        ends = await asyncio.gather(*(request(priced(lm, 1, 1), account) for _ in range(8)), return_exceptions=True)
    assert ends.count("七天") == len(lm.calls) == 3
    assert account.usage().cost == 300


async def test_far_from_the_limit_calls_stay_side_by_side() -> None:
    account = Budget(max_cost=10_000_000)
    with scripted_lm(lambda _: spends(100, delay=0.1)) as lm:
        await asyncio.gather(*(request(priced(lm, 1, 1), account) for _ in range(4)))
    assert lm.most_in_flight == 4


async def test_a_call_that_waits_for_room_ends_at_the_deadline() -> None:
    account = Budget(max_cost=250, seconds=2.0)
    with scripted_lm(lambda _: spends(100, delay=60)) as lm:
        ends = await asyncio.gather(*(failure(priced(lm, 1, 1), account) for _ in range(2)))
    assert [error.kind for error in ends] == ["deadline", "deadline"]
    assert len(lm.calls) == 1


def test_when_the_money_is_used_up_the_best_answer_so_far_is_given(make_rag: Any) -> None:
    grounding = in_turn(*(judged(0.1 * n) for n in range(1, 5)))  # each hop is a little nearer, so there is another
    bench = make_rag(helpful(grounding=grounding), endless=True, options=PRICED, max_cost=4000)
    record = bench.ask(QUESTION, plan=hop_plan(10))
    assert (record.status, record.stop_reason) == ("best_effort", "budget")
    assert "七天" in record.answer
    assert len(record.trace) < 10
    dearest = max(len(call.text) for call in bench.lm.calls) + 200
    assert 4000 <= record.usage.cost < 4000 + dearest


def test_when_the_money_does_not_suffice_for_one_answer_nothing_is_claimed(make_rag: Any) -> None:
    record = make_rag(options=PRICED, max_cost=1).ask(QUESTION)
    assert (record.status, record.stop_reason, record.usage.lm_calls) == ("unavailable", "budget", 1)


# -- what a user sees ------------------------------------------------------------------------


def test_roles_cost_what_their_own_endpoints_cost(make_rag: Any) -> None:
    with scripted_lm(helpful()) as judges:
        bench = make_rag(options=PRICED, judge_lm=priced(judges, 3, 3))
        record = bench.ask(QUESTION)
    spent = record.usage
    judged = sum(len(call.text) for call in judges.calls)
    assert record.status == "answered"
    assert spent.cost > spent.prompt_tokens + spent.completion_tokens
    assert spent.cost == pytest.approx(spent.prompt_tokens + spent.completion_tokens + 2 * judged, rel=0.1)


def test_hops_share_the_cost_and_the_record_keeps_it(make_rag: Any) -> None:
    record = make_rag(helpful(grounding=NO), endless=True, options=PRICED).ask(QUESTION, plan=hop_plan(2))
    assert len(record.trace) == 2
    assert 0 < sum(hop.usage.cost for hop in record.trace) < record.usage.cost  # the router was asked before
    again = Answer.model_validate_json(json.dumps(record.model_dump(mode="json")))
    assert again == record


def test_a_trace_from_before_prices_is_read_and_its_cost_is_unknown(make_rag: Any) -> None:
    old = make_rag(options=PRICED).ask(QUESTION).model_dump(mode="json")
    for usage in (old["usage"], *(hop["usage"] for hop in old["trace"])):
        del usage["cost"]
    assert Answer.model_validate(old).usage.cost is None


def test_the_line_and_the_table_show_money_only_where_something_has_a_price(
    make_rag: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, currency in ((PRICED, "元"), ("", "")):
        bench = make_rag(options=options)
        assert cli._currency(bench.rag) == currency
        record = bench.ask(QUESTION)
        capsys.readouterr()
        print_answer(record, trace=True, currency=currency)
        shown = capsys.readouterr().out
        assert shown.count("元") == (2 if currency else 0)
        assert "token · " in shown
        if currency:
            assert f"token · {record.usage.cost:.2f} 元 · " in shown


def test_an_unknown_cost_is_said_where_something_has_a_price(make_rag: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_lm(helpful()) as judges:
        bench = make_rag(options=PRICED, judge_lm=judges.line)
        record = bench.ask(QUESTION)
    assert record.usage.cost is None
    print_answer(record, currency=cli._currency(bench.rag))
    assert "花费未知" in capsys.readouterr().out
