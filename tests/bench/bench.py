"""`make bench`: what a question costs, from real runs on the sample knowledge base.

Start-up and overhead are measured against a scripted endpoint on loopback, everything else on the
language model of the settings (the embedded one by default).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table
from scripted_lm import Call, Reply, helpful, scripted_lm

from programs import build_program
from programs.settings import load_settings
from signatures.records import Answer

QUESTIONS = {
    "direct_reply": "你好，在吗？",
    "fast_retrieval": "公司每月提供的话费补贴金额是多少元？",
    "standard_retrieval": "岚盒 4.0 怎么升级固件？",
    "deep_search": "岚台标准版和企业版的数据保留时间有什么区别？",
    "code_search": "刷新访问令牌的函数在哪个文件？",
    "clarify_needed": "那个怎么弄？",
    "fallback": "帮我把下周三的会议取消掉",
}
WARM = "岚盒断网以后数据能存多久？"
"""Asked first with every strategy: the instructions are then in the prefix cache, the passages are others."""
RUNS = 5
console = Console(width=150)


def main() -> None:
    """Print all tables."""
    command_line()
    overhead()
    strategies()


def command_line() -> None:
    """Time of `--help`, and from the start of the process to the first language model request."""
    program = [sys.executable, "-m", "programs.cli"]
    show_help = partial(subprocess.run, [*program, "--help"], check=True, capture_output=True)
    help_times = [_timed(show_help) for _ in range(RUNS)]
    firsts = []
    for _ in range(RUNS):
        arrived: list[float] = []

        def note(call: Call, arrived: list[float] = arrived) -> Reply | dict[str, object] | str:
            arrived.append(time.perf_counter())
            return helpful()(call)

        with scripted_lm(note) as lm:
            start = time.perf_counter()
            environment = {**os.environ, "ADAPTIVE_RAG_LM": lm.line}
            ask = [*program, "ask", QUESTIONS["fast_retrieval"], "--json"]
            subprocess.run(ask, env=environment, capture_output=True, check=False)
        firsts.append(arrived[0] - start)  # the classifier routes: the first request is the relevance judge's
    probe = "import sys, programs.build; print('torch' in sys.modules)"
    torch = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout.strip()
    table = Table("what", "median s", "min", "max", title="command line")
    for name, times in (("--help", help_times), ("start to first LM request", firsts)):
        table.add_row(name, *(f"{value:.2f}" for value in (statistics.median(times), min(times), max(times))))
    console.print(table)
    console.print(f"torch imported on the default path: {torch}")


def overhead() -> None:
    """Time of a request that is neither language model nor store, with an endpoint that answers at once."""
    with scripted_lm(helpful()) as lm:
        rag = build_program(load_settings(lm=lm.line))
        own = []
        for number in range(105):
            record: Answer = rag(question=f"{QUESTIONS['fast_retrieval']}{number}").record
            usage = record.usage
            hops = max(1, len(record.trace))
            own.append(1000 * (usage.seconds - usage.lm_seconds - usage.store_seconds) / hops)
    own = sorted(own[5:])  # the first ones open stores and connections
    console.print(f"own overhead per hop: p50 {own[49]:.1f} ms, p99 {own[98]:.1f} ms ({len(own)} requests)")


def strategies() -> None:
    """One real question for each strategy, after another one with the same strategy."""
    rag = build_program()
    columns = ("strategy", "status", "hops", "LM calls", "prompt tokens", "evaluated", "written")
    title = "real runs, after another question with the same strategy"
    table = Table(*columns, "s", "LM s", "store s", "own %", title=title)
    for strategy, question in QUESTIONS.items():
        rag(question=WARM, strategy=strategy)
        record: Answer = rag(question=question, strategy=strategy).record
        usage = record.usage
        own = usage.seconds - usage.lm_seconds - usage.store_seconds
        table.add_row(
            strategy,
            record.status,
            str(len(record.trace)),
            str(usage.lm_calls),
            str(usage.prompt_tokens),
            str(usage.prompt_tokens - usage.cached_tokens),
            str(usage.completion_tokens),
            f"{usage.seconds:.1f}",
            f"{usage.lm_seconds:.1f}",
            f"{usage.store_seconds:.2f}",
            f"{100 * own / usage.seconds:.1f}",
        )
    console.print(table)
    routed = [rag.router(question=question) for question in QUESTIONS.values()]
    chosen = {name: reply.strategy for name, reply in zip(QUESTIONS, routed, strict=True)}
    console.print("routing of the same questions: " + json.dumps(chosen, ensure_ascii=False))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
