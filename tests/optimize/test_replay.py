"""A replay decides as the program did, and as it would have done; what a trace cannot say is not guessed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from loop_scripts import QUESTION, hop_plan, in_turn, judged, relevant
from memory_store import MemoryDenseStore, MemoryTextStore
from scripted_lm import Call, Reply, helpful

from data.loading import load_question_cases
from optimize import jsonl
from optimize.optimize import main
from optimize.replay import Point, frontier, grid, pick
from optimize.traces import Dials, Replayed, TraceError, Unknown, differences, read_traces, replay
from programs.adaptive_rag import AdaptiveRAG
from programs.opinions import OpinionCache
from signatures.records import Answer, Passage

LIVE = Dials(0.5, 0.5, 0.5)
CHANCES = (0.05, 0.3, 0.45, 0.55, 0.7, 0.95)
PASSAGES = [
    Passage(id=f"p{n}", document_id=f"p{n}", text=text)
    for n, text in enumerate(
        ["退货运费由买家承担。", "退货须在七天内。", "运费险可在订单页购买。", "换货的运费由卖家承担。"]
    )
]


GREETING = {
    "intent": "CHIT_CHAT",
    "strategy": "direct_reply",
    "confidence": 99,
    "reasoning": "",
    "clarification_questions": [],
}


class Whims:
    """A language model whose every reply hangs on the prompt and on a seed, and on nothing else."""

    seed = 0

    def share(self, *words: str) -> float:
        digest = hashlib.sha256("\0".join([str(self.seed), *words]).encode()).digest()
        return digest[0] / 255

    def chance(self, *words: str) -> float:
        return CHANCES[int(self.share(*words) * 5.99)]

    def __call__(self, call: Call) -> Any:
        match call.signature:
            case "relevance":
                if self.share("garbage", call.text) < 0.07:
                    return "没有 JSON"
                chances = [self.chance("relevance", str(n), call.text) for n in range(call.passage_count)]
                labels = " ".join(f"{n}{'是' if c >= 0.5 else '否'}" for n, c in enumerate(chances, start=1))
                return Reply(json.dumps({"verdicts": labels}, ensure_ascii=False), probability=chances)
            case "grounding" | "utility":
                if self.share("garbage", call.text) < 0.07:
                    return "没有 JSON"
                return judged(self.chance(call.signature, call.text))
            case "generate":
                share = self.share("answer", call.text)
                return {
                    "answer": "" if share < 0.1 else f"退货运费由买家承担，依据{'甲乙丙丁戊'[int(share * 4.9)]}[1]。"
                }
            case "rewrite":
                # A query that was tried before ends the loop.
                return {
                    "query": QUESTION if self.share("tried", call.text) < 0.15 else f"运费 {self.share(call.text):.4f}"
                }
        return helpful()(call)


@given(
    seed=st.integers(0, 10_000),
    hops=st.integers(1, 3),
    dials=st.tuples(*[st.sampled_from([0.2, 0.4, 0.5, 0.6, 0.8])] * 3),
    fewer=st.integers(1, 3),
)
@hypothesis_settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_replay_is_what_the_program_did_and_what_it_would_have_done(
    whimsical: Any, seed: int, hops: int, dials: tuple[float, float, float], fewer: int
) -> None:
    bench, whims, known = whimsical
    whims.seed = seed
    bench = replace(bench, rag=AdaptiveRAG(replace(bench.rag.resources, opinions=OpinionCache())))
    record = bench.ask(QUESTION, plan=hop_plan(hops, top_k=2))
    assert differences(record, replay(record, LIVE, LIVE)) == []
    other = Dials(*dials, max_hops=fewer)
    guess = replay(record, other, LIVE)
    known[isinstance(guess, Replayed)] += 1
    if isinstance(guess, Unknown):
        return
    thresholds = dict(zip(NAMES, dials, strict=True))
    # What was paid for in the first run is paid for again.
    program = AdaptiveRAG(replace(bench.rag.resources, thresholds=thresholds, opinions=OpinionCache()))
    real = program(question=QUESTION, plan=hop_plan(fewer, top_k=2)).record
    changed = [text for text in differences(real, guess) if not text.startswith("lm_calls")]
    assert changed == []
    if not any(v.error_kind for hop in record.trace for v in (hop.relevance, hop.grounding, hop.utility) if v):
        assert guess.lm_calls == real.usage.lm_calls


NAMES = ("relevance", "grounding", "utility")


@pytest.fixture
def whimsical(make_rag: Callable[..., Any]) -> Any:
    whims = Whims()
    known = {True: 0, False: 0}
    yield make_rag(whims, passages=PASSAGES), whims, known
    assert known[True] >= 30, "enough is known for this to be a test"
    assert known[False] >= 10, "and not everything is"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ({}, {}),
        ({"relevance": relevant("没有")}, {}),
        ({"generate": {"answer": ""}}, {}),
        ({"generate": in_turn({"answer": "七天[1]。"}, Reply(status=500)), "grounding": judged(0.1)}, {}),
        ({"rewrite": Reply(status=500), "grounding": judged(0.1)}, {}),
        ({"rewrite": {"query": QUESTION}, "grounding": judged(0.1)}, {}),
        ({"grounding": judged(0.1)}, {"max_lm_calls": 5}),
        ({"relevance": "无"}, {}),
        ({}, {"dense": MemoryDenseStore(384, down=True), "text": MemoryTextStore(down=True)}),
        ({"relevance": relevant("没有")}, {"dense": MemoryDenseStore(384, down=True), "text": MemoryTextStore()}),
        ({"decompose": {"parts": ["退货几天", "运费谁付"]}, "grounding": judged(0.1)}, {}),
        ({"route": GREETING}, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strategy", [None, "deep_search"])
def test_every_way_to_end_is_reproduced(
    make_rag: Any, script: dict[str, Any], options: dict[str, Any], strategy: str | None
) -> None:
    record = make_rag(helpful(**script), **options).ask(QUESTION, strategy=strategy)
    assert differences(record, replay(record, LIVE, LIVE)) == []


def test_a_lower_threshold_ends_earlier_and_costs_less(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=in_turn(judged(0.4), judged(0.9))), endless=True)
    record = bench.ask(QUESTION, plan=hop_plan(3))
    assert (len(record.trace), record.best_hop) == (2, 2)
    earlier = replay(record, Dials(0.5, 0.3, 0.5), LIVE)
    assert isinstance(earlier, Replayed)
    assert (len(earlier.hops), earlier.best_hop, earlier.status) == (1, 1, "answered")
    assert earlier.lm_calls == record.usage.lm_calls - 4  # the rewrite and three calls of the second hop
    one = replay(record, Dials(0.5, 0.5, 0.5, max_hops=1), LIVE)
    assert isinstance(one, Replayed)
    assert (one.status, one.stop_reason, one.best_hop) == ("best_effort", "max_hops", 1)


def test_what_was_never_run_or_written_is_unknown(make_rag: Any) -> None:
    record = make_rag(helpful(relevance=relevant("退货")), overlap=False).ask(QUESTION, plan=hop_plan(2))
    assert record.status == "answered"
    stricter = replay(record, Dials(0.5, 0.95, 0.5), LIVE)
    assert stricter == Unknown("a hop that was never run")
    wider = replay(record, Dials(0.05, 0.5, 0.5), LIVE)
    assert wider == Unknown("an answer from other passages")
    nothing_left = replay(record, Dials(0.95, 0.5, 0.5, max_hops=1), LIVE)
    assert isinstance(nothing_left, Replayed)
    assert (nothing_left.status, nothing_left.answer) == ("no_evidence", "")


def test_an_overlapped_answer_is_paid_for_before_its_passages_are_judged(make_rag: Any) -> None:
    record = make_rag(helpful(relevance=relevant("退货"))).ask(QUESTION, plan=hop_plan(2))
    assert record.trace[0].overlapped
    assert replay(record, Dials(0.05, 0.5, 0.5), LIVE) == Unknown("an answer from other passages")
    nothing_left = replay(record, Dials(0.95, 0.5, 0.5, max_hops=1), LIVE)
    assert isinstance(nothing_left, Replayed)
    assert nothing_left.lm_calls == record.usage.lm_calls - 2  # the two verdicts; the answer was under way


def test_other_reasons_make_another_rewrite(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=judged(0.2), utility=judged(0.6)))
    record = bench.ask(QUESTION, plan=hop_plan(2))
    assert replay(record, Dials(0.5, 0.5, 0.7), LIVE) == Unknown("a rewrite for other reasons")


def labelled(make_rag: Any, count: int = 30) -> list[tuple[Any, Answer]]:
    """Questions whose first hop is right and is judged 0.4: at 0.5 a second hop is paid for in vain."""
    cases = [case for case in load_question_cases() if case.answerable and case.split == "dev"][:count]
    answers = {case.question: case.answer for case in cases}
    script = helpful(
        grounding=judged(0.4),
        generate=lambda call: {"answer": answers[call.input("question")]},
    )
    bench = make_rag(
        script, passages=[Passage(id="all", document_id="d", text="\n".join(answers.values()))], endless=True
    )
    return [(case, bench.ask(case.question, plan={"rerank": False})) for case in cases]


def test_the_frontier_finds_the_cheaper_threshold(make_rag: Any) -> None:
    pairs = labelled(make_rag, 12)
    points = frontier(pairs, LIVE, grid(LIVE, [0.3, 0.7], [1, 2]))
    live, chosen = points[0], pick(points)
    assert chosen.right >= live.right
    assert chosen.calls < live.calls - 3
    assert chosen.dials.grounding == 0.3 or chosen.dials.max_hops == 1
    assert all(point.known <= 1 for point in points)


def test_the_pick_is_the_cheapest_within_one_standard_error_and_known_well() -> None:
    def point(right: float, calls: float, known: float = 1.0) -> Point:
        return Point(LIVE, right, 0.05, calls, known)

    best, close, cheap, hidden = point(0.8, 9), point(0.76, 6), point(0.7, 2), point(0.99, 1, 0.5)
    assert pick([best, close, cheap, hidden]) == close


def test_the_command_reads_what_ask_json_prints(
    make_rag: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    records = [record for _, record in labelled(make_rag, 6)]
    whole = [record.model_dump(mode="json") for record in records]
    (folder / "one.json").write_text(json.dumps(whole[0], ensure_ascii=False, indent=2), encoding="utf-8")
    rows = [json.dumps(whole[1], ensure_ascii=False), *(json.dumps({"id": "x", "record": one}) for one in whole[2:])]
    (folder / "rest.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert read_traces([folder]) == records
    assert main(["replay", str(folder), "--live", "0.5", "0.5", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 traces are reproduced exactly" in out
    assert "grounding 0.35" in out
    assert main(["replay", str(folder), "--live", "0.5", "0.5", "0.5", "--cases"]) == 0
    out = capsys.readouterr().out
    assert "picked: " in out
    assert "ADAPTIVE_RAG_GROUNDING_THRESHOLD=" in out
    assert main(["replay", str(folder), "--live", "0.5", "0.3", "0.5"]) == 1
    assert "not reproduced" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"question": "x"}', "null"])
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    assert main(["replay", str(path), "--live", "0.5", "0.5", "0.5"]) == 1
    assert "x.json" in capsys.readouterr().err


def test_a_recording_is_read_as_it_was_written(tmp_path: Path, make_rag: Any) -> None:
    """Separators that only text knows stand within a line, and a kill may have cut one."""
    passages = [Passage(id="u", document_id="u", text="退货运费\u2028由买家\x0b承担\x85。")]
    record = make_rag(passages=passages).ask(QUESTION, strategy="fast_retrieval")
    path = tmp_path / "program-now.jsonl"
    jsonl.append(path, {"case": "a", "record": record.model_dump(mode="json")})
    assert read_traces([path]) == [record]
    with path.open("ab") as file:
        file.write('{"case": "b", "record": "退'.encode()[:-1])
    assert read_traces([path]) == [record]
    jsonl.append(path, {"case": "c", "record": record.model_dump(mode="json")})
    assert read_traces([path]) == [record, record]


@pytest.mark.parametrize("name", ["broken.jsonl", "broken.json", "gone.jsonl"])
def test_a_file_without_a_trace_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if not name.startswith("gone"):
        path.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(TraceError, match=name):
        read_traces([path])
