"""What `bench_loop` measures; every function asks in one event loop and gives figures.

Figures are ratios or percentiles of one run: both sides of a ratio are asked in turn, on the same machine in
the same minute, so that what else the machine does hits both.
"""

import gc
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latency_lm import bare_client, covered
from loop_questions import Question
from loop_setting import STRATEGY, Setting, run, trouble

from optimize.statistics import interval
from signatures.records import Answer
from signatures.vocabulary import Strategy

Side = Callable[[Question], Awaitable[int]]
"""Answers a question and says after how many hops."""


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    Attributes:
        part: What it belongs to.
        name: What was measured.
        value: The figure.
        unit: Of the figure.
        low, high: Its interval, where there is one.
        goal: The most (`at_least` the least) that it should be; None for no goal.
        note: How it came about.
    """

    part: str
    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


async def hop_ratio(
    setting: Setting, part: str, sides: dict[str, Side], questions: int, *, goal: float | None = None
) -> list[Figure]:
    """Wall time per hop of the first side against the second, question by question, taking turns to begin."""
    names = list(sides)
    figures: list[Figure] = []
    setting.lm.set(seconds=setting.latency)
    for hops in (1, 2):
        calls, chained = [], []
        for side in sides.values():
            setting.lm.calls()
            await side(setting.new(1, hops=hops)[0])  # also opens stores and connections
            spans = [span for own in setting.lm.calls().values() for span in own]
            calls.append(str(len(spans)))
            chained.append(f"{covered(spans) / setting.latency:.1f}")
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for place, asked in enumerate(setting.new(questions, hops=hops)):
            for name in names if place % 2 else reversed(names):
                start = time.monotonic()
                done = await sides[name](asked)
                seconds[name].append((time.monotonic() - start) / hops)
                if done != asked.hops:
                    raise AssertionError(f"{name} needs {done} hops for {asked}")
        logs = [math.log(a / b) for a, b in zip(*(seconds[name] for name in names), strict=True)]
        ratio, low, high = map(math.exp, interval(logs, [str(place) for place in range(len(logs))]))
        middle = " / ".join(f"{1000 * statistics.median(seconds[name]):.0f}" for name in names)
        made = f"{' / '.join(calls)} LM calls a question, as long as {' / '.join(chained)} one after the other"
        figures.append(
            Figure(
                part,
                f"{' / '.join(names)}, questions with {hops} hop{'s' * (hops > 1)}",
                ratio,
                low=low,
                high=high,
                goal=goal,
                note=f"{questions} questions; median {middle} ms per hop; {made}",
            )
        )
    return figures


async def overhead(setting: Setting, *, in_flight: int, requests: int) -> list[Figure]:
    """Wall time that is neither language model nor store, of requests with one hop."""
    setting.lm.set(seconds=setting.latency)
    await run(setting, setting.new(2 * in_flight), in_flight=in_flight)
    setting.lm.calls()
    embedding, cpu = setting.embedder.seconds, time.process_time()
    records = await run(setting, setting.new(requests), in_flight=in_flight)
    cpu = time.process_time() - cpu
    embedding = setting.embedder.seconds - embedding
    spans = setting.lm.calls()
    usages = [(record.usage, covered(spans[record.question])) for record in records]
    own = [1000 * (u.seconds - u.lm_seconds - u.store_seconds) for u, _ in usages]
    whole = [1000 * (u.seconds - server - u.store_seconds) for u, server in usages]
    stores = [1000 * u.store_seconds for u, _ in usages]
    part = f"own overhead, {in_flight} in flight"

    def figure(name: str, times: list[float], percent: int, goal: float | None, note: str) -> Figure:
        return Figure(part, f"{name} p{percent}", float(np.percentile(times, percent)), "ms", goal=goal, note=note)

    counted = f"by the program's account, {requests} requests{_troubled(records)}"
    clocked = "by the server's clock: HTTP and waiting for this process included"
    return [
        figure("own", own, 50, 10.0, counted),
        figure("own", own, 99, 50.0, counted),
        figure("outside the server and the stores", whole, 50, None, clocked),
        figure("outside the server and the stores", whole, 99, None, clocked),
        figure("stores and embedding", stores, 50, None, ""),
        Figure(part, "embedding", 1000 * embedding / requests, "ms", note="mean of a request, part of the stores'"),
        Figure(part, "CPU", 1000 * cpu / requests, "ms", note="of a request, all threads of this process"),
    ]


async def throughput(setting: Setting, *, slots: int, in_flight: int, requests: int, rounds: int) -> list[Figure]:
    """What a server with so many slots gives the program, against what it gives a client that does nothing else."""
    setting.lm.set(seconds=setting.latency, slots=slots)
    await run(setting, setting.new(in_flight), in_flight=in_flight)
    bodies = setting.lm.bodies()
    shares, rates, calls, wrong = [], [], 0, ""
    for number in range(rounds):
        bare = 0.0
        if number % 2:
            bare = await bare_client(setting.lm, bodies, calls=calls, in_flight=in_flight)
        setting.lm.calls()
        start = time.monotonic()
        records = await run(setting, setting.new(requests), in_flight=in_flight)
        spent = time.monotonic() - start
        wrong = wrong or _troubled(records)
        made = sum(map(len, setting.lm.calls().values()))
        # The same number of calls; where the bare client went first, as many as the round before needed.
        bare = bare * made / calls if number % 2 else await bare_client(
            setting.lm, bodies, calls=made, in_flight=in_flight
        )
        calls = made
        shares.append(100 * bare / spent)
        rates.append(f"{made / spent:.0f} of {made / bare:.0f}")
    return [
        Figure(
            f"throughput, {in_flight} in flight",
            f"share of what the server gives, {slots or 'any number of'} replies at once",
            statistics.fmean(shares),
            "%",
            min(shares),
            max(shares),
            goal=95.0,
            at_least=True,
            note=f"calls per second {', '.join(rates)}; {calls} calls a round{wrong}",
        )
    ]


async def memory(setting: Setting, *, requests: int, warm_up: int, in_flight: int = 20) -> list[Figure]:
    """Growth of this process over many requests, after as many as fill caches and pools."""
    setting.lm.set(seconds=0.0)
    points = 20
    await run(setting, setting.new(warm_up), in_flight=in_flight)
    done, sizes, wrong = [0], [_resident()], ""
    for number in range(points):
        share = requests * (number + 1) // points - done[-1]
        wrong = wrong or _troubled(await run(setting, setting.new(share), in_flight=in_flight))
        setting.lm.calls()
        done.append(done[-1] + share)
        sizes.append(_resident())
    half = points // 2
    slopes = [1024 * float(np.polyfit(done[begin:], sizes[begin:], 1)[0]) for begin in (0, half)]
    part = f"memory, {requests} requests after {warm_up}"
    return [
        Figure(part, "growth", sizes[-1] - sizes[0], "MB", note=f"from {sizes[0]:.1f} to {sizes[-1]:.1f} MB{wrong}"),
        Figure(part, "slope", slopes[0], "KB", note="a request, least squares over 21 points"),
        Figure(part, "slope of the second half", slopes[1], "KB", note="a request"),
    ]


def _troubled(records: Sequence[Answer]) -> str:
    """How many requests did not go as the script has it, and what happened to the first."""
    found = [wrong for record in records if (wrong := trouble(record, hops=1))]
    return f"; {len(found)} went wrong, the first: {found[0]}" if found else ""


def _resident() -> float:
    """Megabytes of this process in memory, without what only waits to be collected."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def program_side(setting: Setting, strategy: Strategy | None = STRATEGY) -> Side:
    """The program as a side of a comparison."""

    async def side(asked: Question) -> int:
        return len((await setting.ask(asked, strategy)).trace)

    return side


def chain_side(setting: Setting, *, routed: bool = False) -> Side:
    """The sequential chain as a side of a comparison, with the same plan."""
    from sequential_chain import SequentialChain

    from programs.strategies import STRATEGY_TABLE

    plan: Any = STRATEGY_TABLE[STRATEGY].plan
    chain = SequentialChain(setting.rag, setting.lm.url, plan, routed=routed)

    async def side(asked: Question) -> int:
        state = await chain(asked.text)
        return state["hops"] if state["passed"] else 0

    return side
