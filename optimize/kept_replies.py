"""Replies that were paid for are kept, and what language models cost while an optimizer runs.

An interrupted compile that is started again finds its replies here, by everything that decided them: the
endpoint, the role and the whole request. A reply that could not be used is not kept. A fault of the
endpoint never becomes a score: the request is made again, until it works or too many have failed.
"""

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.callback import BaseCallback

from programs.budget import Budget
from programs.endpoint import Body, Deadline, EndpointClient
from programs.lm import RoleLMs
from programs.prices import cost_of
from programs.replies import reported_tokens
from programs.settings import Role, Settings
from signatures.vocabulary import FailureKind

INFRASTRUCTURE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (lm15.AuthError, "auth"),
    (lm15.BillingError, "auth"),
    (lm15.RateLimitError, "rate_limit"),
    (lm15.TimeoutError, "timeout"),
    (lm15.TransportError, "connection"),
    (lm15.ServerError, "server"),
)
"""Faults that say nothing about a prompt."""
IN_A_ROW = 3
"""Failures one after the other that are an outage, and the fewest of which a share is formed."""
PAUSE = 1.0
"""Seconds before a failed request is made again; they double."""


class Outage(BaseException):
    """The endpoint failed too often. No `Exception`: optimizers swallow those and go on spending."""


@dataclass
class Ledger:
    """What was asked, and what of it had to be paid now.

    Attributes:
        limit: Share of failed requests above which the run ends.
        calls, prompt_tokens, completion_tokens, seconds: Of all replies, kept ones as they were at first.
        cost: Of all replies, by the prices of their endpoints; None where that of one is unknown.
        paid_calls, paid_prompt, paid_completion, paid_seconds, paid_cost: Of those that were asked for now.
        failures: Requests that failed, by kind.
    """

    limit: float = 0.05
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float | None = 0.0
    paid_calls: int = 0
    paid_prompt: int = 0
    paid_completion: int = 0
    paid_seconds: float = 0.0
    paid_cost: float | None = 0.0
    failures: dict[FailureKind, int] = field(default_factory=dict)
    in_a_row: int = 0
    outage: str = ""

    def reply(self, entry: dict[str, Any], *, paid: bool, cost: float | None) -> None:
        """Count a reply; `cost` is what it costs, or did at first."""
        self.calls += 1
        self.prompt_tokens += entry["prompt"]
        self.completion_tokens += entry["completion"]
        self.seconds += entry["seconds"]
        self.cost = _sum(self.cost, cost)
        if paid:
            self.in_a_row = 0
            self.paid_calls += 1
            self.paid_prompt += entry["prompt"]
            self.paid_completion += entry["completion"]
            self.paid_seconds += entry["seconds"]
            self.paid_cost = _sum(self.paid_cost, cost)

    def failed(self, kind: FailureKind, message: str) -> None:
        """Count a failure of the endpoint.

        Raises:
            Outage: It is one too many.
        """
        self.in_a_row += 1
        self.failures[kind] = self.failures.get(kind, 0) + 1
        count = sum(self.failures.values())
        share = count / (self.paid_calls + count)
        if self.in_a_row >= IN_A_ROW or (count >= IN_A_ROW and share > self.limit):
            self.outage = f"{count} of {self.paid_calls + count} requests failed, the last with {kind}: {message}"
            raise Outage(self.outage)


class ReplyStore:
    """Replies by the digest of their request, in a file; each is on disk before it is used.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._seen: dict[str, set[str]] = defaultdict(set)
        # Used from the private loop and from the caller's thread, one at a time.
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
        self._db.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, entry TEXT NOT NULL)")

    def get(self, key: str) -> dict[str, Any] | None:
        """A kept reply."""
        with self._lock:
            row = self._db.execute("SELECT entry FROM replies WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            entry: dict[str, Any] = json.loads(row[0])
            self._seen[entry["text"]].add(key)
            return entry

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Keep a reply."""
        with self._lock, self._db:
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(entry)))
            self._seen[entry["text"]].add(key)

    def forget(self, text: str) -> None:
        """Drop the replies with this text that were used in this process: it could not be read."""
        with self._lock, self._db:
            for key in self._seen.pop(text, ()):
                self._db.execute("DELETE FROM replies WHERE key = ?", (key,))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class ForgetUnreadable(BaseCallback):
    """Tells a store which replies an adapter could not read; only there this is known."""

    def __init__(self, store: ReplyStore) -> None:
        self._store = store
        self._texts: dict[str, str] = {}

    def on_adapter_parse_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._texts[call_id] = str(inputs.get("completion", ""))

    def on_adapter_parse_end(
        self, call_id: str, outputs: dict[str, Any] | None, exception: BaseException | None = None
    ) -> None:
        text = self._texts.pop(call_id, "")
        if exception is not None:
            self._store.forget(text)


class KeptLMs(RoleLMs):
    """The language models of a program with a store in front of them.

    Each role asks its first endpoint only: prompts are compiled for one language model.

    Args:
        settings: Endpoints by role.
        store: Where replies are kept.
        ledger: Counts.
    """

    def __init__(self, settings: Settings, store: ReplyStore, ledger: Ledger) -> None:
        super().__init__(settings)
        # Replies pass through the same engine, adapter and errors as those of the program.
        self._clients = {
            role: [_KeepingClient(clients[0], role, store, ledger)]  # type: ignore[list-item]
            for role, clients in self._clients.items()
        }
        self._lms = {role: self._build(role) for role in self._clients}

    def __getitem__(self, role: Role) -> dspy.LM:
        """The role's language model; the sampling that an optimizer asks for by DSPy's settings is passed on."""
        lm, asked = super().__getitem__(role), dspy.settings.lm
        wanted = getattr(asked, "kwargs", {})
        if wanted.get("rollout_id") is None or not wanted.get("temperature"):
            return lm
        # The seed reaches the endpoint, a rollout id would not: the same request, other luck.
        return lm.copy(temperature=wanted["temperature"], seed=wanted["rollout_id"])


class _KeepingClient:
    """An endpoint as the engine sees it, with the store in front."""

    def __init__(self, client: EndpointClient, role: Role, store: ReplyStore, ledger: Ledger) -> None:
        self._client, self._role, self._store, self._ledger = client, role, store, ledger
        self.settings = client.settings
        self.cool_until = 0.0
        self.warm_up: Callable[[], Any] = client.warm_up

    async def complete(self, body: Body, budget: Budget) -> tuple[Body, str]:
        if self._ledger.outage:
            raise Outage(self._ledger.outage)
        key = self._key(body)
        entry = self._store.get(key)
        if entry is not None:
            if (limit := budget.exhausted()) is not None:
                raise Deadline(f"the request's {limit} is used up", code=limit)
            budget.count_call()
            tokens = reported_tokens(entry["reply"])
            cost = cost_of(tokens, self.settings.price)
            budget.count_tokens(**tokens._asdict(), cost=cost)
            self._ledger.reply(entry, paid=False, cost=cost)
            return entry["reply"], entry["text"]
        pause = PAUSE
        while True:
            started = time.monotonic()
            try:
                reply, text = await self._client.complete(body, budget)
                break
            except lm15.LM15Error as error:
                kind = next((kind for cls, kind in INFRASTRUCTURE if isinstance(error, cls)), None)
                if kind is None or isinstance(error, lm15.ContextLengthError):
                    raise
                self._ledger.failed(kind, str(error))
            await asyncio.sleep(pause)
            pause *= 2
        tokens = reported_tokens(reply)
        entry = {
            "reply": reply,
            "text": text,
            "prompt": tokens.prompt,
            "completion": tokens.completion,
            "seconds": round(time.monotonic() - started, 3),
        }
        self._ledger.reply(entry, paid=True, cost=cost_of(tokens, self.settings.price))
        self._store.put(key, entry)
        return reply, text

    def _key(self, body: Body) -> str:
        endpoint = [self.settings.label, self.settings.thinking, self.settings.context]
        request = json.dumps([endpoint, self._role, body], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(request.encode("utf-8", "replace")).hexdigest()


def _sum(one: float | None, other: float | None) -> float | None:
    """The sum of two amounts; None where one is unknown."""
    return None if one is None or other is None else one + other
