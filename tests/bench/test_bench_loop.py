"""The measuring parts of `bench_loop`, small: what is counted is what happened. The chain needs LangGraph."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_loop import cells, main
from latency_lm import bare_client, covered, latency_lm
from loop_measures import Figure, hop_ratio, memory, overhead, program_side, throughput
from loop_questions import LightEmbedder, Question
from loop_setting import Setting, prepared

LATENCY = 0.02


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("bench_loop")
    with latency_lm(seconds=LATENCY) as lm, prepared(folder, lm, LightEmbedder(), latency=LATENCY) as made:
        yield made


@pytest.fixture(autouse=True)
def afresh(setting: Setting) -> None:
    """Each test begins with the same server, which has seen nothing."""
    setting.lm.set(seconds=LATENCY)


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_questions_need_the_hops_that_they_say(setting: Setting) -> None:
    for hops in (1, 2):
        for asked in setting.new(5, hops=hops):
            record = asyncio.run(setting.ask(asked))
            assert len(record.trace) == hops and not record.degraded


def test_a_side_against_itself_takes_the_same_time(setting: Setting) -> None:
    sides = {"program": program_side(setting), "again": program_side(setting)}
    figures = asyncio.run(hop_ratio(setting, "hop only", sides, 4, goal=0.45))
    assert [figure.name[:15] for figure in figures] == ["program / again"] * 2
    for figure in figures:
        assert 0.2 < figure.value < 5, "on a machine that does something else too"
        assert figure.low is not None and figure.high is not None and figure.low <= figure.value <= figure.high
        assert figure.goal == 0.45


def test_a_side_that_takes_three_times_as_long_is_seen(setting: Setting) -> None:
    program = program_side(setting)

    async def slower(asked: Question) -> int:
        start = time.monotonic()
        hops = await program(asked)
        await asyncio.sleep(2 * (time.monotonic() - start))
        return hops

    for names, times in ((("program", "slower"), 1 / 3), (("slower", "program"), 3.0)):
        sides = {name: {"program": program, "slower": slower}[name] for name in names}
        for figure in asyncio.run(hop_ratio(setting, "hop only", sides, 6)):
            assert times / 2 < figure.value < times * 2


def test_a_side_that_needs_other_hops_is_no_comparison(setting: Setting) -> None:
    async def never(asked: object) -> int:
        return 0

    with pytest.raises(AssertionError, match="never needs 0 hops"):
        asyncio.run(hop_ratio(setting, "hop only", {"program": program_side(setting), "never": never}, 2))


def test_overhead_is_what_language_model_and_stores_leave(setting: Setting) -> None:
    for in_flight in (1, 5):
        figures = named(asyncio.run(overhead(setting, in_flight=in_flight, requests=10)))
        own = figures["own p50"]
        assert 0 < own.value < figures["outside the server and the stores p50"].value
        assert (own.goal, figures["own p99"].goal) == (10.0, 50.0)
        assert "10 requests" in own.note and "went wrong" not in own.note
        assert 0 < figures["embedding"].value < figures["stores and embedding p50"].value


def test_throughput_counts_the_same_calls_on_both_sides(setting: Setting) -> None:
    [figure] = asyncio.run(throughput(setting, slots=2, in_flight=5, requests=10, rounds=2))
    assert 10 < figure.value < 130 and figure.at_least and figure.goal == 95.0
    assert "40 calls a round" in figure.note


def test_memory_is_looked_at_after_the_warm_up(setting: Setting) -> None:
    figures = asyncio.run(memory(setting, requests=40, warm_up=10, in_flight=5))
    assert {figure.part for figure in figures} == {"memory, 40 requests after 10"}
    assert [figure.unit for figure in figures] == ["MB", "KB", "KB"]


def test_the_server_takes_its_time_and_keeps_to_its_slots(setting: Setting) -> None:
    lm = setting.lm
    asyncio.run(setting.ask(setting.new(1)[0]))
    bodies = lm.bodies()
    lm.set(seconds=0.1, slots=2)
    assert asyncio.run(bare_client(lm, bodies, calls=6, in_flight=6)) >= 0.3
    assert sum(map(len, lm.calls().values())) == 6 and lm.calls() == {}


def test_the_server_answers_a_hundred_at_once(setting: Setting) -> None:
    asyncio.run(setting.ask(setting.new(1)[0]))
    bodies = setting.lm.bodies()
    setting.lm.set(seconds=0.5)
    start = time.monotonic()
    asyncio.run(bare_client(setting.lm, bodies, calls=100, in_flight=100))
    assert time.monotonic() - start < 5  # one after the other would be 50


def test_covered_counts_what_overlaps_once() -> None:
    assert covered([(1.0, 3.0), (2.0, 4.0), (6.0, 7.0), (6.2, 6.5)]) == pytest.approx(4.0)
    assert covered([]) == 0.0


@pytest.mark.parametrize(
    ("value", "goal", "at_least", "met", "shown"),
    [(9.0, 10.0, False, True, "met"), (96.0, 95.0, True, True, "met"), (94.0, 95.0, True, False, "not met")],
)
def test_a_goal_is_met_or_not(value: float, goal: float, at_least: bool, met: bool, shown: str) -> None:
    figure = Figure("part", "name", value, goal=goal, at_least=at_least)
    assert figure.met is met and cells(figure)[5] == shown
    assert Figure("part", "name", value).met is None


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"json": tmp_path / "loop.json", "markdown": tmp_path / "loop.md"}
    wanted = "--parts overhead --latency 0.02 --in-flight 4 --overhead-requests 8".split()
    main([*wanted, *(part for name, path in files.items() for part in (f"--{name}", str(path)))])
    written = json.loads(files["json"].read_text(encoding="utf-8"))
    assert written["latency"] == 0.02 and len(written["figures"]) == 14
    assert {"part", "name", "value", "goal", "met"} <= set(written["figures"][0])
    assert files["markdown"].read_text(encoding="utf-8").count("own overhead, 4 in flight") == 7
    assert "own overhead, 1 in flight" in capsys.readouterr().out
