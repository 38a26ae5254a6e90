"""Threads, loops and programs side by side: nothing mixes, nothing is kept, nothing waits for ever."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from scripted_lm import Call, Reply, helpful, scripted_lm

from programs import background, lm


def echoing(name: str) -> Any:
    """A model that answers with its own name and the question it was asked."""
    return helpful(
        generate=lambda call: {"answer": f"{name}：{call.input('question')}"},
        relevance=lambda call: {"verdicts": " ".join(f"{n}是" for n in range(1, call.passage_count + 1))},
    )


async def test_two_profiles_at_once_never_mix(make_rag: Any) -> None:
    """J1: twenty requests at once with two programs; no global is configured per request."""
    benches = [make_rag(echoing("甲")), make_rag(echoing("乙"))]

    async def one(number: int) -> None:
        name, bench = "甲乙"[number % 2], benches[number % 2]
        question = f"第{number}种退货的运费"
        record = (await bench.rag.acall(question=question)).record
        assert record.answer.startswith(f"{name}：{question}")

    await asyncio.gather(*(one(number) for number in range(20)))


def test_each_thread_gets_its_own_result_and_its_own_bill(make_rag: Any) -> None:
    """J2: usage is taken from the request itself, never from a shared history."""
    bench = make_rag(echoing("甲"))

    def one(number: int) -> Any:
        return bench.ask(f"第{number}种退货的运费")

    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(one, range(16)))
    calls = {record.usage.lm_calls for record in records}
    assert len(calls) == 1, "the same work for each"
    assert sum(record.usage.lm_calls for record in records) == len(bench.lm.calls)
    for number, record in enumerate(records):
        assert f"第{number}种退货的运费" in record.answer


def test_asyncio_run_three_times_in_one_process(make_rag: Any) -> None:
    """J3: connections outlive the loop that a caller brings."""
    bench = make_rag()
    for _ in range(3):
        record = asyncio.run(bench.rag.acall(question="退货要几天")).record
        assert record.status == "answered"
    assert bench.ask("退货要几天").status == "answered"


def test_a_forked_child_has_connections_of_its_own() -> None:
    """A server that loads the program first and forks its workers then."""
    program = """
        import os, sys
        from programs.judges import UtilityJudge
        from programs.lm import RoleLMs
        from programs.module import Resources
        from programs.settings import load_settings

        settings = load_settings(lm=sys.argv[1])
        judge = UtilityJudge(Resources(RoleLMs(settings), None, settings, {"utility": 0.5}))
        passed = [judge(question="q", answer="七天").passed]
        child = os.fork()
        if child == 0:
            os._exit(0 if judge(question="q", answer="七天").passed else 1)
        passed += [os.waitpid(child, 0)[1] == 0, judge(question="q", answer="七天").passed]
        print(passed)
    """
    with scripted_lm(helpful()) as endpoint:
        command = [sys.executable, "-c", textwrap.dedent(program), endpoint.line]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[True, True, True]"


async def test_inside_a_running_loop_both_ways_of_calling_work(make_rag: Any) -> None:
    bench = make_rag()
    assert (await bench.rag.acall(question="退货要几天")).record.status == "answered"
    assert bench.ask("退货要几天").status == "answered"


async def test_parts_of_the_program_work_alone_and_inside_a_running_loop(make_rag: Any) -> None:
    bench = make_rag()
    assert bench.rag.router(question="退货要几天").strategy == "fast_retrieval"
    assert bench.rag.judges.relevance(question="退货", passages=["退货的规定"]).passed
    assert (await bench.rag.judges.utility.acall(question="退货", answer="七天。")).passed
    assert bench.rag.rewriter(question="退货").changed


def test_a_synchronous_call_on_the_private_loop_is_an_error_and_no_deadlock() -> None:
    async def inner() -> None:
        async def nothing() -> None:
            return None

        background.run(nothing())

    with pytest.raises(RuntimeError, match="acall"):
        background.run(inner())


def test_an_error_crosses_the_loops_as_it_is() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        background.run(fails())
    with pytest.raises(KeyError):
        asyncio.run(background.on_loop(fails()))


async def test_who_stops_waiting_stops_the_request(make_rag: Any) -> None:
    arrived = threading.Event()

    def hangs(_: Call) -> Reply:
        arrived.set()
        return Reply("", delay=60)

    bench = make_rag(hangs)
    task = asyncio.create_task(bench.rag.acall(question="退货要几天"))
    await asyncio.to_thread(arrived.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The place at the endpoint is free again: with one place only, the next request would wait.
    [client] = lm._clients.values()
    for _ in range(50):
        if client._slots._value == client.settings.concurrency:
            break
        await asyncio.sleep(0.01)
    assert client._slots._value == client.settings.concurrency


def test_a_program_that_serves_keeps_no_prompts(make_rag: Any) -> None:
    """J4: DSPy keeps histories and traces of everything by default."""
    bench = make_rag()
    for _ in range(3):
        bench.ask("退货要几天")
    assert dspy.settings.trace == []
    for role in ("router", "generator", "judge"):
        assert bench.rag.resources.lms[role].history == []
    from dspy.clients import base_lm

    assert base_lm.GLOBAL_HISTORY == []


def test_an_optimizer_still_gets_its_trace(make_rag: Any) -> None:
    bench = make_rag()
    with dspy.context(trace=[]):
        bench.ask("退货要几天")
        names = [type(step[0]).__name__ for step in dspy.settings.trace]
    assert len(names) == 5, "route, relevance, generate, grounding, utility"


def test_nothing_is_cached_between_calls(make_rag: Any) -> None:
    """C2: a cached reply makes a retry pointless and a bad reply permanent."""
    bench = make_rag()
    for expected in (1, 2, 3):
        bench.rag.router(question="退货要几天")
        assert len(bench.lm.calls) == expected
