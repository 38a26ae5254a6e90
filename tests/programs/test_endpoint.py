"""One endpoint in every bad mood: the right kind of failure, the right number of calls, in time."""

import time
from typing import Any

import pytest
from endpoint_requests import GOOD, failure, request
from scripted_lm import Call, Reply, closed_port, scripted_lm

from programs.budget import Budget

# -- kinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "calls"),
    [
        (Reply(status=500), "server", 1),
        (Reply(status=502, raw=b"<html>Bad Gateway</html>"), "server", 1),
        (Reply(status=503, headers={"retry-after": "0"}), "server", 2),
        (Reply(status=429, headers={"retry-after": "0"}), "rate_limit", 2),
        (Reply(status=429, headers={"retry-after": "3600"}), "rate_limit", 1),
        (Reply(status=401), "auth", 1),
        (Reply(status=403), "auth", 1),
        (Reply(status=402), "rejected", 1),
        (Reply(status=404), "rejected", 1),
        (Reply(status=400), "rejected", 1),
        (Reply(status=301, headers={"location": "/elsewhere"}), "rejected", 1),
        (Reply(status=408), "timeout", 1),
        (Reply(status=504), "timeout", 1),
        (Reply('{"answer": "七天"}', cut=True), "connection", 1),
        (Reply(None), "empty", 2),
        (Reply("   \n"), "empty", 2),
        (Reply(raw=b""), "server", 1),
        (Reply(raw=b"<html>captive portal</html>"), "server", 1),
        (Reply(raw=b"\xff\xfe\x00"), "server", 1),
        (Reply(raw=b"[]"), "server", 1),
        (Reply(raw=b"null"), "server", 1),
        (Reply(raw=b'{"error": {"message": "model is loading"}}'), "server", 1),
        (Reply(raw=b'{"error": "model is loading"}'), "server", 1),
        (Reply(raw=b"{}"), "empty", 2),
        (Reply('{"wrong": 1}'), "parse", 1),
        (Reply("七天", finish="length"), "truncated", 2),
        (Reply(status=400, error={"message": "x", "type": "exceed_context_size_error"}), "context_overflow", 1),
        (Reply(status=400, error={"message": "too long", "code": "context_length_exceeded"}), "context_overflow", 1),
        (
            Reply(status=400, error={"message": "This model's maximum context length is 4096 tokens"}),
            "context_overflow",
            1,
        ),
        (Reply(status=400, error={"message": "Range of input length should be [1, 6000]"}), "context_overflow", 1),
        (Reply(status=500, error={"message": "the request exceeds the available context size"}), "context_overflow", 1),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, Reply) else f"{value.status}-{value.raw or value.error}",
)
async def test_every_failure_has_its_kind_and_its_number_of_calls(reply: Reply, kind: str, calls: int) -> None:
    with scripted_lm(lambda _: reply) as lm:
        account = Budget()
        error = await failure(lm.line, account)
    assert error.kind == kind
    assert len(lm.calls) == calls
    assert account.usage().lm_calls == calls


async def test_a_closed_port_is_a_connection_failure_at_once() -> None:
    with closed_port() as url:
        started = time.monotonic()
        error = await failure(f"x@{url}")
    assert error.kind == "connection"
    assert "doctor" in error.hint
    assert time.monotonic() - started < 1


async def test_a_model_that_hangs_is_a_time_out() -> None:
    with scripted_lm(lambda _: Reply("", delay=60)) as lm:
        error = await failure(f"{lm.line}?timeout=0.3")
    assert error.kind == "timeout"
    assert len(lm.calls) == 1


@pytest.mark.parametrize(
    "raw", [b'"error": null, ', b'"usage": null, ', b'"usage": [], ', b'"usage": {"prompt_tokens_details": null}, ']
)
async def test_a_good_reply_with_odd_but_harmless_fields_is_good(raw: bytes) -> None:
    message = b'"choices": [{"message": {"content": "{\\"answer\\": \\"x\\"}"}}]'
    with scripted_lm(lambda _: Reply(raw=b"{" + raw + message + b"}")) as lm:
        assert await request(lm.line) == "x"


# -- retries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_endpoint_is_asked_again_after_the_time_it_names(status: int) -> None:
    replies = iter([Reply(status=status, headers={"retry-after": "0.4"}), GOOD])
    with scripted_lm(lambda _: next(replies)) as lm:
        started = time.monotonic()
        assert await request(lm.line) == "七天"
    assert 0.4 <= time.monotonic() - started < 1.4
    assert len(lm.calls) == 2


async def test_nobody_waits_for_longer_than_the_request_may_take() -> None:
    with scripted_lm(lambda _: Reply(status=429, headers={"retry-after": "5"})) as lm:
        started = time.monotonic()
        error = await failure(lm.line, Budget(seconds=2))
    assert error.kind == "rate_limit"
    assert time.monotonic() - started < 1


async def test_a_retry_after_that_is_a_date_is_no_error() -> None:
    with scripted_lm(lambda _: Reply(status=429, headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})) as lm:
        error = await failure(lm.line, Budget(seconds=0.5))
    assert error.kind == "rate_limit"


# -- refused parameters ----------------------------------------------------------------------


async def test_a_parameter_that_is_refused_is_left_out_from_then_on() -> None:
    def script(call: Call) -> Reply:
        for name in ("temperature", "response_format"):
            if name in call.body:
                return Reply(status=400, error={"message": f"Unrecognized request argument supplied: {name}"})
        return GOOD

    with scripted_lm(script) as lm:
        assert await request(lm.line) == "七天"
        first = len(lm.calls)
        assert await request(lm.line) == "七天"
    assert first == 4  # temperature, json_schema, json_object
    assert len(lm.calls) == first + 1


async def test_an_endpoint_that_knows_json_mode_but_no_schema_gets_json_mode() -> None:
    def script(call: Call) -> Reply:
        if call.body["response_format"]["type"] == "json_schema":
            return Reply(status=400, error={"message": "response_format.type 'json_schema' is not supported"})
        return GOOD

    with scripted_lm(script) as lm:
        assert await request(lm.line) == "七天"
        assert await request(lm.line) == "七天"
    assert [call.body["response_format"]["type"] for call in lm.calls] == ["json_schema", "json_object", "json_object"]


async def test_max_tokens_gets_its_new_name_where_the_old_one_is_refused() -> None:
    def script(call: Call) -> Reply:
        if "max_tokens" in call.body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Reply(status=400, error={"message": message})
        return GOOD

    with scripted_lm(script) as lm:
        assert await request(lm.line) == "七天"
    assert lm.calls[1].body["max_completion_tokens"] == lm.calls[0].body["max_tokens"]
    assert "max_tokens" not in lm.calls[1].body


async def test_a_refusal_without_a_known_name_is_not_retried_for_ever() -> None:
    with scripted_lm(
        lambda _: Reply(status=400, error={"message": "I refuse temperature and logprobs and seed"})
    ) as lm:
        error = await failure(lm.line)
    assert error.kind == "rejected"
    assert len(lm.calls) <= 3


async def test_thinking_is_switched_off_once_where_the_endpoint_demands_it() -> None:
    """K5: hybrid models of DashScope refuse calls without streaming unless thinking is off."""

    def script(call: Call) -> Reply:
        if call.body.get("enable_thinking") is not False:
            message = "parameter.enable_thinking must be set to false for non-streaming calls"
            return Reply(status=400, error={"message": message})
        return GOOD

    with scripted_lm(script) as lm:
        assert await request(lm.line) == "七天"
        assert len(lm.calls) == 2
        assert await request(lm.line) == "七天"
    assert len(lm.calls) == 3


async def test_a_thinking_option_that_the_endpoint_does_not_know_is_taken_back() -> None:
    def script(call: Call) -> Reply:
        for name in ("chat_template_kwargs", "enable_thinking"):
            if name in call.body:
                return Reply(status=400, error={"message": f"Unknown parameter: '{name}'."})
        return GOOD

    with scripted_lm(script) as lm:
        assert await request(f"{lm.line}?thinking=off") == "七天"
        first = len(lm.calls)
        assert await request(f"{lm.line}?thinking=off") == "七天"
    assert (first, len(lm.calls)) == (3, 4)


@pytest.mark.parametrize(
    ("option", "sent"),
    [
        ("", None),
        ("?thinking=auto", None),
        ("?thinking=off", {"enable_thinking": False}),
        ("?thinking=on", {"enable_thinking": True}),
    ],
)
async def test_the_thinking_option_is_sent(option: str, sent: Any) -> None:
    with scripted_lm(lambda _: GOOD) as lm:
        await request(lm.line + option)
    assert lm.calls[0].body.get("chat_template_kwargs") == sent
