"""What one request may spend, and what it has spent.

A `Budget` is made for each request and reached through a context variable, so that the router, the
hops, the judges and every retry below them draw on the same account. Nothing is counted on a module.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
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


@dataclass(eq=False)
class Charge:
    """What one request costs.

    Attributes:
        moment: When it was sent, in seconds of the budget. With it, what was spent since a snapshot stays known
            where something before it was not.
        most: What it can cost at most.
        cost: None is unknown, as it is until a reply tells it.
        ended: It is no longer on its way.
    """

    moment: float
    most: float = math.inf
    cost: float | None = None
    ended: bool = False


@dataclass
class Budget:
    """Limits and counters of one request.

    Attributes:
        seconds: Wall time from the start of the request; None is no limit.
        max_lm_calls: Requests to language models, retries included.
        max_tokens: Prompt and completion tokens together, as endpoints report them.
        max_cost: Money for them, by the prices of the endpoints that were asked. A reply whose cost is
            unknown uses it up: a limit that cannot be checked must not be passed. A request that was sent and
            given up counts as the most that it can have cost.
        degraded: What did not work, in words for the user, without doubles.
    """

    seconds: float | None = None
    max_lm_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    degraded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._watches = {"lm": _Stopwatch(), "store": _Stopwatch()}
        self._calls = 0
        self._prompt = 0
        self._cached = 0
        self._completion = 0
        self._charges: list[Charge] = []
        self._on_the_way: list[float] = []
        self._freed = asyncio.Event()

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
            if self.max_cost is not None and self._at_most() >= self.max_cost:
                return "budget"
        return None

    def count_call(self) -> None:
        """Count a request that is answered without being sent."""
        with self._lock:
            self._calls += 1

    @contextmanager
    def call(self, most: float, cost: float | None = None) -> Iterator[Charge]:
        """Count a request that the block sends.

        Whoever gives it up does not know what it cost: the endpoint may have read and written all of it. So the
        cost is unknown from the start, and stays so where neither a reply nor a refusal says what it is.

        Args:
            most: What it can cost at most.
            cost: What it costs whatever comes of it; None where that is not known.
        """
        charge = Charge(time.monotonic() - self._start, most, cost)
        with self._lock:
            self._calls += 1
            self._charges.append(charge)
        try:
            yield charge
        finally:
            charge.ended = True
            self._tell_unknown(charge)

    @asynccontextmanager
    async def room(self, most: float) -> AsyncIterator[None]:
        """Wait until what is left pays for the calls on their way; the block is one more call.

        Calls side by side would each find the limit not reached, and pass it together. So close to it they
        go one after the other, and together they pass it by one call at most. All of them run on the private
        loop (`programs.background`).

        Args:
            most: What the call can cost at most.
        """
        if self.max_cost is None:
            yield
            return
        while self._on_the_way and self._at_most() + sum(self._on_the_way) >= self.max_cost:
            self._freed.clear()
            await self._freed.wait()
        self._on_the_way.append(most)
        try:
            yield
        finally:
            self._on_the_way.remove(most)
            self._freed.set()

    def count_tokens(
        self, *, prompt: int, cached: int, completion: int, cost: float | None = None, charge: Charge | None = None
    ) -> None:
        """Add what an endpoint reported for one reply.

        Args:
            prompt, cached, completion: Tokens.
            cost: What they cost; None is unknown.
            charge: Of the request; None for a reply that none was sent for.
        """
        with self._lock:
            if charge is None:
                charge = Charge(time.monotonic() - self._start, ended=True)
                self._charges.append(charge)
            # An endpoint that does not say what it counts will not say it the next time either.
            charge.cost, charge.most = cost, math.inf
            self._prompt += prompt
            self._cached += cached
            self._completion += completion
        self._tell_unknown(charge)

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
        with self._lock:
            now = time.monotonic()
            total = Usage(
                lm_calls=self._calls,
                prompt_tokens=self._prompt,
                cached_tokens=self._cached,
                completion_tokens=self._completion,
                cost=self._spent(since.seconds if since is not None else None),
                seconds=now - self._start,
                lm_seconds=self._watches["lm"].total(now),
                store_seconds=self._watches["store"].total(now),
            )
        if since is None:
            return total
        added = Usage.model_fields.keys() - {"cost"}
        return Usage(cost=total.cost, **{name: getattr(total, name) - getattr(since, name) for name in added})

    def _spent(self, since: float | None = None) -> float | None:
        """Money for all requests, or those behind a moment; None where that of one is unknown."""
        costs = [charge.cost for charge in self._charges if since is None or charge.moment > since]
        known = [cost for cost in costs if cost is not None]
        return _total(known) if len(known) == len(costs) else None

    def _at_most(self) -> float:
        """What all requests that are no longer on their way can have cost."""
        return _total(one.most if one.cost is None else one.cost for one in self._charges if one.ended)

    def _tell_unknown(self, charge: Charge) -> None:
        """Say that a limit of money is not what it seems."""
        if self.max_cost is None or charge.cost is not None:
            return
        if charge.most == math.inf:
            self.note("一次回复的花费无法得知（端点没有报告 token 数，或没有单价），不再调用模型")
        else:
            self.note("一次没有等到回复的请求花费无法得知，按它最多可能的花费计入上限")


def _total(amounts: Iterable[float]) -> float:
    """The sum without the last digits, in which sums of floating point numbers differ from those on paper."""
    return round(math.fsum(amounts), 12)


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
