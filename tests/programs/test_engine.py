"""Several endpoints of one role: the first that works answers, and one that failed rests."""

import asyncio
import copy
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from scripted_lm import Reply, ScriptedLM, closed_port, scripted_lm

from programs import budget
from programs.budget import Budget
from programs.endpoint import COOL_DOWN
from programs.errors import LanguageModelError
from programs.lm import RoleLMs, ask
from programs.settings import load_settings
from signatures.answering import AnswerFromPassages


def says(text: str) -> Any:
    return lambda _: {"answer": text}


def refuses(status: int) -> Any:
    return lambda _: Reply(status=status, headers={"retry-after": "0"})


async def request(lms: RoleLMs, account: Budget | None = None) -> str:
    with budget.spending(account or Budget()):
        reply = await ask(
            dspy.Predict(AnswerFromPassages),
            lms["generator"],
            role="generator",
            passages="资料",
            question="退货要几天",
            answer_language="中文",
        )
    return str(reply.answer)


def roles(*endpoints: ScriptedLM | str) -> RoleLMs:
    lines = [endpoint if isinstance(endpoint, str) else endpoint.line for endpoint in endpoints]
    return RoleLMs(load_settings(lm=" ".join(lines)))


@pytest.fixture
def start() -> Any:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(scripted_lm(script))


async def test_the_first_endpoint_answers_while_it_works(start: Any) -> None:
    first, second = start(says("甲")), start(says("乙"))
    assert [await request(roles(first, second)) for _ in range(3)] == ["甲"] * 3
    assert second.calls == []


@pytest.mark.parametrize("status", [500, 503, 429, 401, 403, 404, 400, 402])
async def test_the_next_endpoint_answers_when_the_first_refuses(status: int, start: Any) -> None:
    first, second = start(refuses(status)), start(says("乙"))
    account = Budget()
    assert await request(roles(first, second), account) == "乙"
    assert len(account.degraded) == 1
    assert first.url in account.degraded[0]


@pytest.mark.parametrize(
    "reply", [Reply(None), Reply(raw=b"<html>"), Reply("x", cut=True), Reply(raw=b'{"error": {"message": "down"}}')]
)
async def test_the_next_endpoint_answers_when_the_first_gives_nothing_usable(reply: Reply, start: Any) -> None:
    first, second = start(lambda _: reply), start(says("乙"))
    assert await request(roles(first, second)) == "乙"


async def test_endpoints_are_tried_in_their_order(start: Any) -> None:
    with closed_port() as closed:
        hangs, answers, never = start(lambda _: Reply("", delay=60)), start(says("丙")), start(says("丁"))
        assert await request(roles(f"x@{closed}", f"{hangs.line}?timeout=0.2", answers, never)) == "丙"
    assert len(hangs.calls) == 1
    assert never.calls == []


async def test_an_endpoint_that_failed_rests_and_is_then_tried_again(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = iter([True])
    first = start(lambda _: Reply(status=500) if next(broken, False) else {"answer": "甲"})
    second = start(says("乙"))
    lms = roles(first, second)
    assert await request(lms) == "乙"
    assert await request(lms) == "乙"
    assert len(first.calls) == 1, "it rests"

    later = SimpleNamespace(monotonic=lambda: time.monotonic() + COOL_DOWN + 1)
    monkeypatch.setattr("programs.engine.time", later)
    assert await request(lms) == "甲"
    assert len(second.calls) == 2


async def test_an_endpoint_that_rests_is_still_the_last_resort(start: Any) -> None:
    broken = iter([True])
    first = start(lambda _: Reply(status=500) if next(broken, False) else {"answer": "甲"})
    second = start(refuses(500))
    lms = roles(first, second)
    with pytest.raises(LanguageModelError):
        await request(lms)
    assert await request(lms) == "甲"


async def test_one_endpoint_alone_is_asked_again_although_it_failed(start: Any) -> None:
    broken = iter([True])
    only = start(lambda _: Reply(status=500) if next(broken, False) else {"answer": "甲"})
    lms = roles(only)
    with pytest.raises(LanguageModelError) as caught:
        await request(lms)
    assert caught.value.kind == "server"
    assert await request(lms) == "甲"


async def test_the_last_endpoints_error_is_told(start: Any) -> None:
    with pytest.raises(LanguageModelError) as caught:
        await request(roles(start(refuses(500)), start(refuses(401))))
    assert caught.value.kind == "auth"


async def test_a_reply_cut_at_the_token_limit_goes_to_no_other_endpoint(start: Any) -> None:
    first, second = start(lambda _: Reply("半句", finish="length")), start(says("乙"))
    with pytest.raises(LanguageModelError) as caught:
        await request(roles(first, second))
    assert caught.value.kind == "truncated"
    assert second.calls == []


async def test_the_deadline_is_shared_by_all_endpoints(start: Any) -> None:
    first, second = start(lambda _: Reply("", delay=60)), start(says("乙"))
    started = asyncio.get_running_loop().time()
    with pytest.raises(LanguageModelError) as caught:
        await request(roles(first, second), Budget(seconds=0.4))
    assert caught.value.kind == "deadline"
    assert asyncio.get_running_loop().time() - started < 1.4
    assert second.calls == []


async def test_a_missing_embedded_model_lets_the_next_endpoint_answer(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import programs.lm
    from programs.errors import ModelFileError

    original = programs.lm._address

    def address(endpoint: Any, settings: Any) -> Any:
        if endpoint.embedded:
            raise ModelFileError("there are no weights")
        return original(endpoint, settings)

    monkeypatch.setattr(programs.lm, "_address", address)
    account = Budget()
    assert await request(roles("local", start(says("乙"))), account) == "乙"
    assert "there are no weights" in account.degraded[0]


async def test_roles_can_have_endpoints_of_their_own(start: Any) -> None:
    general, judge = start(says("甲")), start(says("乙"))
    lms = RoleLMs(load_settings(lm=general.line, judge_lm=judge.line))
    assert await request(lms) == "甲"
    assert lms.identity("judge") == f"scripted@{judge.url}"
    assert lms.identity("generator") == f"scripted@{general.url}"


def test_copies_of_a_program_share_connections(start: Any) -> None:
    lms = roles(start(says("甲")))
    assert copy.deepcopy(lms) is lms
    copied = copy.deepcopy(lms["generator"])
    assert copied._engine_spec is lms["generator"]._engine_spec


def test_dspys_own_optimizers_can_call_the_language_model_directly(start: Any) -> None:
    lms = roles(start(lambda _: "好的"))
    assert "好的" in str(lms["reflection"]("请写一条更好的指令"))


async def test_a_stream_is_the_whole_reply(start: Any) -> None:
    lms = roles(start(lambda _: "好的"))
    request_ = dspy.lm15.Request(model=lms["generator"].model, messages=[dspy.lm15.Message.user("你好")])
    events = [event async for event in lms["generator"]._async_engine_spec.stream(request_)]
    assert "好的" in str(events)
