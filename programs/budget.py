"""What one request may spend, and what it has spent.

A `Budget` is made for each request and reached through a context variable, so that the router, the
hops, the judges and every retry below them draw on the same account. Nothing is counted on a module.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from signatures.records import Usage

_current: ContextVar["Budget | None"] = ContextVar("adaptive_rag_budget", default=None)


class _Stopwatch:
    """Wall time during which at least one of several overlapping activities ran."""

    def __init__(self) -> None:
        self._running = 0
        self._since = 0.0
        self._total = 0.0

    def start(self, now: float) -> None:
        if self._running == 0:
            self._since = now
        self._running += 1

    def stop(self, now: float) -> None:
        self._running -= 1
        if self._running == 0:
            self._total += now - self._since

    def total(self, now: float) -> float:
        return self._total + (now - self._since if self._running else 0.0)


@dataclass
class Budget:
    """Limits and counters of one request.

    Attributes:
        seconds: Wall time from the start of the request; None is no limit.
        max_lm_calls: Requests to language models, retries included.
        max_tokens: Prompt and completion tokens together, as endpoints report them.
        degraded: What did not work, in words for the user, without doubles.
    """

    seconds: float | None = None
    max_lm_calls: int | None = None
    max_tokens: int | None = None
    degraded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._watches = {"lm": _Stopwatch(), "store": _Stopwatch()}
        self._calls = 0
        self._prompt = 0
        self._cached = 0
        self._completion = 0

    @property
    def remaining(self) -> float | None:
        """Seconds left, possibly negative; None without a limit."""
        return None if self.seconds is None else self.seconds - (time.monotonic() - self._start)

    def exhausted(self) -> Literal["deadline", "budget"] | None:
        """Which limit forbids another language model call, if any."""
        remaining = self.remaining
        if remaining is not None and remaining <= 0:
            return "deadline"
        with self._lock:
            if self.max_lm_calls is not None and self._calls >= self.max_lm_calls:
                return "budget"
            if self.max_tokens is not None and self._prompt + self._completion >= self.max_tokens:
                return "budget"
        return None

    def count_call(self) -> None:
        """Count a request that is about to be sent."""
        with self._lock:
            self._calls += 1

    def count_tokens(self, *, prompt: int, cached: int, completion: int) -> None:
        """Add what an endpoint reported for one reply."""
        with self._lock:
            self._prompt += prompt
            self._cached += cached
            self._completion += completion

    def note(self, message: str) -> None:
        """Record that something did not work."""
        with self._lock:
            if message not in self.degraded:
                self.degraded.append(message)

    @contextmanager
    def timing(self, what: Literal["lm", "store"]) -> Iterator[None]:
        """Count the time of the block as spent in a language model or in a store."""
        watch = self._watches[what]
        with self._lock:
            watch.start(time.monotonic())
        try:
            yield
        finally:
            with self._lock:
                watch.stop(time.monotonic())

    def usage(self, since: Usage | None = None) -> Usage:
        """What was spent, in all or since an earlier snapshot."""
        now = time.monotonic()
        with self._lock:
            total = Usage(
                lm_calls=self._calls,
                prompt_tokens=self._prompt,
                cached_tokens=self._cached,
                completion_tokens=self._completion,
                seconds=now - self._start,
                lm_seconds=self._watches["lm"].total(now),
                store_seconds=self._watches["store"].total(now),
            )
        if since is None:
            return total
        return Usage(**{name: getattr(total, name) - getattr(since, name) for name in Usage.model_fields})


def current() -> Budget:
    """The budget of the running request; an unlimited one where there is none."""
    budget = _current.get()
    if budget is None:
        budget = Budget()
        _current.set(budget)
    return budget


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Make `budget` the one of everything that the block calls."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)
