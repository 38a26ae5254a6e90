"""The LM engine behind every role: DSPy hands over one request, the first endpoint that works answers.

DSPy owns prompts and parsing, this owns the network: failover in order, cool-down, one shared
concurrency limit per endpoint, the request's deadline and budget, clean replies. A custom engine
is DSPy's seam for that. LiteLLM's router does part of it, but its import costs seconds and each
call tens of milliseconds, which is more than this program may cost in all.
"""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dspy import lm15

from programs import background, budget
from programs.endpoint import COOL_DOWN, Body, Deadline, EndpointClient
from programs.lm_line import EndpointSettings
from programs.logprobs import reply_tokens, sound_tokens
from programs.replies import ReplyEmpty, ReplyTruncated

_FAILOVER = (lm15.TransportError, lm15.ProviderError, ReplyEmpty)
"""What another endpoint may do better. A cut reply is not among them: the model is the same length."""


@dataclass
class Answered:
    """Who gave the last reply in a block.

    Attributes:
        endpoint: None where none did yet, or where a reply came from no endpoint.
    """

    endpoint: EndpointSettings | None = None


_answered: ContextVar[Answered | None] = ContextVar("adaptive_rag_answered", default=None)


@contextmanager
def answering() -> Iterator[Answered]:
    """Learn which endpoint answers the call in the block: after a failover it is not the first one."""
    found = Answered()
    token = _answered.set(found)
    try:
        yield found
    finally:
        _answered.reset(token)


class AsyncEngine:
    """Endpoints of one role, tried in order; the passed-over ones last."""

    def __init__(self, endpoints: Sequence[EndpointClient]) -> None:
        self._endpoints = tuple(endpoints)

    def __deepcopy__(self, memo: dict[int, Any]) -> "AsyncEngine":
        return self  # optimizers copy programs; connections are shared, never copied

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """One reply, cleaned.

        Raises:
            lm15.LM15Error, ReplyTruncated, ReplyEmpty, Deadline: The last endpoint's error.
        """
        return await background.on_loop(self._complete(request))

    async def _complete(self, request: lm15.Request) -> lm15.Response:
        account = budget.current()
        body = chat_body(request)
        order = in_order(self._endpoints)
        for position, endpoint in enumerate(order):
            try:
                reply, text = await endpoint.complete(body, account)
            except (Deadline, ReplyTruncated, lm15.ContextLengthError):
                raise
            except _FAILOVER as error:
                endpoint.cool_until = time.monotonic() + COOL_DOWN
                if position + 1 == len(order):
                    raise
                account.note(f"{endpoint.settings.label}: {error}，已改用下一个端点")
                continue
            except TimeoutError as error:
                # The request's own deadline; an endpoint's time-out is among the errors above.
                raise Deadline("the request's deadline is used up", code="deadline") from error
            endpoint.cool_until = 0.0
            # The object is shared with whoever asked, although this runs on another task.
            if (listener := _answered.get()) is not None:
                listener.endpoint = endpoint.settings
            choice = {**reply["choices"][0], "message": {"role": "assistant", "content": text}}
            tokens = sound_tokens(choice.pop("logprobs", None))
            if tokens is not None:
                choice["logprobs"] = {"content": reply_tokens(tokens, text)}
            return lm15.response_from_openai_chat({**reply, "choices": [choice]}, model=request.model)
        raise AssertionError("a role has at least one endpoint")

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:
        """The whole reply as one stream: a reply is shown only after it was judged."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Nothing to close: endpoints outlive programs."""


class Engine:
    """The synchronous face of `AsyncEngine`, for DSPy's own optimizers."""

    # Read by DSPy to decide what a request may carry; an endpoint that refuses one of
    # these is asked again without it.
    supports_response_schema = True
    supports_function_calling = False
    supports_reasoning = False
    supported_params = frozenset({"response_format", "temperature", "max_tokens", "logprobs", "top_logprobs", "seed"})

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def __deepcopy__(self, memo: dict[int, Any]) -> "Engine":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        return background.run(self._engine.complete(request))

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        yield from lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing to close: endpoints outlive programs."""


def in_order(endpoints: Sequence[EndpointClient]) -> list[EndpointClient]:
    """Endpoints in the order in which they are asked now: as given, but those that cool down last."""
    now = time.monotonic()
    return sorted(endpoints, key=lambda endpoint: max(0.0, endpoint.cool_until - now))


def chat_body(request: lm15.Request) -> Body:
    """A DSPy request as the body of `/chat/completions`."""
    messages: list[dict[str, str]] = []
    if request.system is not None:
        system = request.system if isinstance(request.system, str) else "".join(part.text for part in request.system)
        messages.append({"role": "system", "content": system})
    messages += [{"role": message.role, "content": message.text or ""} for message in request.messages]
    config, body = request.config, Body(messages=messages)
    for name in ("max_tokens", "temperature", "top_p", "seed"):
        if (value := getattr(config, name)) is not None:
            body[name] = value
    if config.stop:
        body["stop"] = list(config.stop)
    if config.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": config.logprobs}
    if config.response_format:
        body["response_format"] = _response_format(dict(config.response_format))
    return body


def _response_format(given: dict[str, Any]) -> dict[str, Any]:
    schema = given.get("schema")
    if schema is None:
        return given
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
