"""One OpenAI-compatible endpoint: a request goes out, a clean reply or a typed error comes back.

Lives on the private loop (`programs.background`). Endpoints differ in what they refuse; what one has
refused once is left out from then on (`_adjust`), so that the second request goes right at once.
"""

import asyncio
import json
import math
import re
import ssl
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import dspy
import httpx
from dspy import lm15

from programs.budget import Budget, Charge
from programs.errors import AdaptiveRAGError
from programs.lm_line import EndpointSettings
from programs.prices import cost_of
from programs.replies import ReplyEmpty, ReplyTruncated, reply_text, reported_tokens

Body = dict[str, Any]
Address = tuple[str, str | None]
"""Base address and API key."""

COOL_DOWN = 30.0
"""Seconds an endpoint is passed over after it failed, when there is another one."""
MAX_WAIT = 20.0
"""Longest `retry-after` that is waited for, in seconds; a longer one goes to the next endpoint."""
_OVERFLOW = re.compile(
    r"exceed_context_size|context[ _]?(length|window|size)|maximum context|prompt is too long|"
    r"input (length|tokens?|is too long)|range of input length|too many tokens|num_ctx",
    re.IGNORECASE,
)
_GAVE_UP = (408, 504)
"""Status of a gateway that stopped waiting for what works behind it."""
_PER_CLIENT = 8
"""Connections of one HTTP client."""
_OPTIONAL = ("top_logprobs", "logprobs", "chat_template_kwargs", "enable_thinking", "temperature", "seed", "stop")


class Deadline(dspy.LMError):
    """The request's own time, calls or tokens are used up."""


class EndpointClient:
    """Sends requests to one endpoint.

    Args:
        settings: Where and how.
        address: Gives base address and key; may start the embedded server, hence called in a thread.
    """

    def __init__(self, settings: EndpointSettings, address: Callable[[], Address]) -> None:
        self.settings = settings
        self._find_address = address
        self._address: Address | None = None
        # Each as often as it may be used at once; the last one back goes first, its connection is warm.
        self._free: list[httpx.AsyncClient] = []
        self._ready = False
        self._slots: asyncio.Semaphore | None = None
        self._starting: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left_out: set[str] = set()
        self._thinking_off = settings.thinking == "off"
        self.cool_until = 0.0

    async def complete(self, body: Body, budget: Budget) -> tuple[Body, str]:
        """The whole reply and its clean text.

        A cut reply is asked for once more with twice the room, an empty one once more without
        thinking, a 429 or 503 once more after the time the endpoint names.

        Raises:
            lm15.LM15Error, ReplyTruncated, ReplyEmpty, Deadline.
        """
        retried: set[str] = set()
        body = dict(body)
        while True:
            try:
                reply = await self._send(body, budget)
                return reply, reply_text(reply)
            except ReplyTruncated:
                if "length" in retried:
                    raise
                retried.add("length")
                body["max_tokens"] = 2 * (body.get("max_tokens") or 512)
            except ReplyEmpty:
                if "empty" in retried:
                    raise
                retried.add("empty")
                self._thinking_off = True
            except (lm15.RateLimitError, lm15.ServerError) as error:
                wait = error.retry_after if error.retry_after is not None else 1.0
                remaining = budget.remaining
                patient = wait <= MAX_WAIT and (remaining is None or wait < remaining)
                if "busy" in retried or not patient or error.status not in (429, 503):
                    raise
                retried.add("busy")
                await asyncio.sleep(wait)
            except lm15.InvalidRequestError as error:
                change = self._adjust(error, body)
                if change is None or change in retried:
                    raise
                retried.add(change)

    async def warm_up(self) -> None:
        """Find the address now: for an embedded model, load it."""
        await self._connection()

    async def _send(self, body: Body, budget: Budget) -> Body:
        if (limit := budget.exhausted()) is not None:
            raise Deadline(f"the request's {limit} is used up", code=limit)
        async with asyncio.timeout(budget.remaining):
            url = await self._connection()
            assert self._slots is not None
            free = self._free
            most = self._most(body, budget)
            async with budget.room(most), self._slots:
                if (limit := budget.exhausted()) is not None:
                    raise Deadline(f"the request's {limit} is used up", code=limit)
                http = free.pop()
                try:
                    with budget.call(most, _unreported(self.settings)) as charge, budget.timing("lm"):
                        return await self._post(http, url, self._wire_body(body), budget, charge)
                finally:
                    free.append(http)

    async def _post(self, http: httpx.AsyncClient, url: str, body: Body, budget: Budget, charge: Charge) -> Body:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout):
                response = await http.post(url, json=body)
        except httpx.TimeoutException as error:
            charge.cost = 0.0  # nothing was sent: only connecting has a time limit there
            raise lm15.TimeoutError(f"no connection to {self.settings.label}") from error
        except TimeoutError as error:
            waited = time.monotonic() - started
            raise lm15.TimeoutError(f"no reply from {self.settings.label} in {waited:.0f} s") from error
        except httpx.HTTPError as error:
            if isinstance(error, httpx.ConnectError):
                charge.cost = 0.0  # nothing was sent
            raise lm15.TransportError(f"{self.settings.label}: {type(error).__name__}") from error
        if response.status_code != 200:
            if response.status_code not in _GAVE_UP:
                charge.cost = 0.0  # what is refused is not sold
            raise self._refusal(response)
        try:
            reply = response.json()
        except ValueError as error:
            raise lm15.ServerError(f"{self.settings.label} did not answer in JSON", status=200) from error
        if not isinstance(reply, dict) or reply.get("error"):
            if isinstance(reply, dict):
                charge.cost = 0.0  # a refusal that calls itself a success
            raise self._refusal(response)
        tokens = reported_tokens(reply)
        cost = cost_of(tokens, self.settings.price)
        budget.count_tokens(**tokens._asdict(), cost=cost, charge=charge)
        if tokens.reported and tokens.prompt < 0.4 * _least_tokens(body):
            # Ollama cuts long prompts without a word, instructions first.
            budget.note(f"{self.settings.label}: 提示被服务端截断（只读了 {tokens.prompt} 个 token），请调大它的上下文")
        return reply

    def _most(self, body: Body, budget: Budget) -> float:
        """The most that a request can cost; 0 where money is not limited."""
        if budget.max_cost is None:
            return 0.0
        if self.settings.price is None:
            return math.inf
        # A token is a byte at least, and the reply ends at its limit.
        size = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
        return self.settings.price.most(prompt=size, completion=body.get("max_tokens") or self.settings.context)

    def _refusal(self, response: httpx.Response) -> lm15.LM15Error:
        try:
            error = response.json().get("error")
        except (ValueError, AttributeError):
            error = None
        message = str((error.get("message") if isinstance(error, dict) else error) or response.text)
        key = self._address[1] if self._address else None
        # Some endpoints repeat the key that they refuse.
        said = message.replace(key, "***") if key else message
        text = f"{self.settings.label}: HTTP {response.status_code}: {said[:300]}"
        status = response.status_code
        retry_after = _seconds(response.headers.get("retry-after"))
        kinds: dict[int, type[lm15.ProviderError]] = {
            401: lm15.AuthError,
            402: lm15.BillingError,
            403: lm15.AuthError,
            408: lm15.TimeoutError,
            429: lm15.RateLimitError,
            504: lm15.TimeoutError,
        }
        kind = kinds.get(status, lm15.ServerError if status >= 500 or status == 200 else lm15.InvalidRequestError)
        if kind in (lm15.InvalidRequestError, lm15.ServerError) and status != 503 and _OVERFLOW.search(response.text):
            kind = lm15.ContextLengthError
        return kind(text, status=status, retry_after=retry_after)

    def _adjust(self, error: lm15.InvalidRequestError, body: Body) -> str | None:
        """Leave out, from now on, what the endpoint's message says it refuses; names the change."""
        text = error.message.lower()
        if isinstance(error, lm15.ContextLengthError) or error.status not in (400, 422):
            return None
        if "max_completion_tokens" in text and "max_completion_tokens" not in self._left_out:
            self._left_out.add("max_completion_tokens")  # see `_wire_body`: the other name is sent
            return "max_completion_tokens"
        sent = self._wire_body(body)
        if "enable_thinking" in text and "enable_thinking" not in sent and "enable_thinking" not in self._left_out:
            self._thinking_off = True
            return "thinking"
        if ("response_format" in text or "json_schema" in text) and "response_format" in sent:
            change = "response_format" if "json_schema" in self._left_out else "json_schema"
            self._left_out.add(change)
            return change
        for name in _OPTIONAL:
            if name in text and name in sent:
                self._left_out.add(name)
                if name == "logprobs":
                    self._left_out.add("top_logprobs")
                return name
        return None

    def _wire_body(self, body: Body) -> Body:
        wire = {**body, "model": self.settings.model}
        if self._thinking_off:
            wire["enable_thinking"] = False  # DashScope
            wire["chat_template_kwargs"] = {"enable_thinking": False}  # vLLM, SGLang, llama.cpp
        elif self.settings.thinking == "on":
            wire["chat_template_kwargs"] = {"enable_thinking": True}
        if "max_completion_tokens" in self._left_out and "max_tokens" in wire:
            wire["max_completion_tokens"] = wire.pop("max_tokens")
        if "json_schema" in self._left_out and "response_format" in wire:
            wire["response_format"] = {"type": "json_object"}
        return {name: value for name, value in wire.items() if name not in self._left_out or name.startswith("max_")}

    async def _connection(self) -> str:
        """The address; afterwards there are clients."""
        running = asyncio.get_running_loop()
        if self._starting is None or self._loop is not running:
            # The first request, or the first of a forked child: nothing of another loop works here.
            self._loop = running
            self._starting = asyncio.Lock()
            self._slots = asyncio.Semaphore(self.settings.concurrency)
            self._free = []
            self._ready = False
        async with self._starting:
            if not self._ready or self._address is None:
                try:
                    self._address = await asyncio.to_thread(self._find_address)
                except AdaptiveRAGError as error:
                    # The embedded model cannot be had: as good as an endpoint that is down.
                    raise lm15.TransportError(f"{self.settings.label}: {error.message}") from error
                self._free = self._clients(*self._address)
                self._ready = True
        return f"{self._address[0]}/chat/completions"

    def _clients(self, base_url: str, key: str | None) -> list[httpx.AsyncClient]:
        """As many entries as requests may be on their way, several for each client.

        A client looks through all its connections for every request: a hundred of them cost ten times what
        twelve do (`make bench-loop`).
        """
        slots = self.settings.concurrency
        clients = [
            httpx.AsyncClient(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                # The reply may take long; a connection may not.
                timeout=httpx.Timeout(None, connect=5.0),
                limits=httpx.Limits(max_connections=None),
                verify=_tls(),
                # A proxy of the company cannot reach this machine's own endpoints.
                trust_env=urlsplit(base_url).hostname not in ("127.0.0.1", "localhost", "::1"),
            )
            for _ in range(math.ceil(slots / _PER_CLIENT))
        ]
        return [clients[slot // _PER_CLIENT] for slot in range(slots)]


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than many a request."""
    return httpx.create_ssl_context()


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # a date: rare, and the default wait does


def _unreported(settings: EndpointSettings) -> float | None:
    """What a request costs of which no tokens are known: nothing where all are free."""
    return cost_of(reported_tokens({}), settings.price)


def _least_tokens(body: Body) -> float:
    """A low estimate of the prompt's tokens: 0.5 for a Chinese character, 0.2 for another."""
    text = "".join(str(message.get("content") or "") for message in body["messages"])
    wide = sum(1 for char in text if char > "\u2e80")
    estimate = 0.5 * wide + 0.2 * (len(text) - wide)
    return estimate if estimate > 500 else 0.0
