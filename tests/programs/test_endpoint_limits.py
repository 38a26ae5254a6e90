"""Deadline, budget and places at one endpoint hold, and no secret gets out."""

import asyncio
import json
import time
from typing import Any

import pytest
from endpoint_requests import GOOD, failure, request
from scripted_lm import Call, Reply, closed_port, scripted_lm

from programs.budget import Budget

# -- deadline and budget ---------------------------------------------------------------------


async def test_the_deadline_of_the_request_ends_a_call_that_hangs() -> None:
    with scripted_lm(lambda _: Reply("", delay=60)) as lm:
        started = time.monotonic()
        error = await failure(lm.line, Budget(seconds=0.5))
    assert error.kind == "deadline"
    assert time.monotonic() - started < 1.5
    assert len(lm.calls) == 1


async def test_nothing_is_sent_after_the_deadline() -> None:
    with scripted_lm(lambda _: GOOD) as lm:
        error = await failure(lm.line, Budget(seconds=0.0))
    assert error.kind == "deadline"
    assert lm.calls == []


async def test_the_deadline_holds_while_waiting_for_a_free_place() -> None:
    with scripted_lm(lambda _: Reply("", delay=60)) as lm:
        line = f"{lm.line}?concurrency=1"
        first = asyncio.create_task(failure(line, Budget(seconds=0.9)))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        error = await failure(line, Budget(seconds=0.3))
        assert time.monotonic() - started < 1
        assert error.kind == "deadline"
        await first
    assert len(lm.calls) == 1


async def test_the_deadline_holds_while_the_embedded_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import programs.lm

    def slow(*_: Any) -> tuple[str, None]:
        time.sleep(0.9)
        return "http://127.0.0.1:9/v1", None

    monkeypatch.setattr(programs.lm, "_address", slow)
    started = time.monotonic()
    error = await failure("local", Budget(seconds=0.3))
    assert error.kind == "deadline"
    assert time.monotonic() - started < 0.8


@pytest.mark.parametrize("limits", [{"max_lm_calls": 1}, {"max_tokens": 1}])
async def test_calls_and_tokens_of_one_request_are_limited(limits: dict[str, int]) -> None:
    account = Budget(**limits)
    with scripted_lm(lambda _: GOOD) as lm:
        await request(lm.line, account)
        error = await failure(lm.line, account)
    assert error.kind == "budget"
    assert len(lm.calls) == 1


async def test_tokens_are_counted_as_reported() -> None:
    account = Budget()
    usage = {"prompt_tokens": 70, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}}
    with scripted_lm(lambda _: Reply('{"answer": "七天"}', usage=usage)) as lm:
        await request(lm.line, account)
    spent = account.usage()
    assert (spent.prompt_tokens, spent.cached_tokens, spent.completion_tokens) == (70, 50, 7)
    assert 0 < spent.lm_seconds <= spent.seconds


# -- context ---------------------------------------------------------------------------------


async def test_a_prompt_that_was_cut_without_a_word_is_noted() -> None:
    """K1: the endpoint answers 200 and read a third of the prompt."""
    account = Budget()
    with scripted_lm(lambda _: Reply('{"answer": "七天"}', usage={"prompt_tokens": 2048})) as lm:
        await request(lm.line, account, passages="长" * 12_000)
    assert "截断" in account.degraded[0]
    assert "2048" in account.degraded[0]


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 0}, {"prompt_tokens": 7000}])
async def test_a_prompt_that_was_read_whole_is_not_complained_about(usage: dict[str, int]) -> None:
    account = Budget()
    with scripted_lm(lambda _: Reply('{"answer": "七天"}', usage=usage)) as lm:
        await request(lm.line, account, passages="长" * 12_000)
    assert account.degraded == []


# -- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 260, 290])
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
async def test_a_key_that_the_endpoint_echoes_is_in_no_error(
    status: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "local-CANARY-1")

    def script(call: Call) -> Reply:
        error = {"message": f"{'x' * before} wrong key: {call.headers['authorization']}"}
        return Reply(status=status, headers={"retry-after": "0"}, raw=json.dumps({"error": error}).encode())

    with scripted_lm(script) as lm:
        error = await failure(f"{lm.line}?key=MY_KEY")
    assert lm.calls[0].headers["authorization"] == "Bearer local-CANARY-1"
    chain: BaseException | None = error
    while chain is not None:
        assert "CANARY" not in f"{chain!s}{chain!r}{chain.__dict__}"
        assert "local-C" not in str(chain)
        chain = chain.__cause__


async def test_an_endpoint_without_a_key_gets_no_authorization() -> None:
    with scripted_lm(lambda _: GOOD) as lm:
        await request(lm.line)
    assert "authorization" not in lm.calls[0].headers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_proxy_in_the_environment_is_not_asked_for_an_endpoint_on_this_machine(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as proxy, scripted_lm(lambda _: GOOD) as lm:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert await request(lm.line.replace("127.0.0.1", host)) == "七天"


# -- limits ----------------------------------------------------------------------------------


async def test_requests_at_once_are_limited_for_all_programs_together() -> None:
    """K4: sixteen at once on an endpoint that takes two."""

    def script(_: Call) -> Reply:
        return Reply('{"answer": "七天"}', delay=0.03) if lm.in_flight <= 2 else Reply(status=429)

    with scripted_lm(script) as lm:
        answers = await asyncio.gather(*(request(f"{lm.line}?concurrency=2") for _ in range(16)))
    assert answers == ["七天"] * 16
    assert lm.most_in_flight == 2
