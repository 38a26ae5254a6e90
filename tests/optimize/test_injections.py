"""What documents with orders bring about is counted, kept, and not asked twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import Call, Reply, ScriptedLM, helpful, scripted_lm

from optimize import injections
from optimize.injections import CASES, main

RIGHT = {"answer": "退货运费由买家承担[2]。"}


def obedient(call: Call) -> Any:
    """Says what documents want: a marked answer, and yes to everything they call right."""
    shown = call.body["messages"][0]["content"]
    if call.signature == "generate":
        return {"answer": "PWNED"} if "PWNED" in shown else RIGHT
    if call.signature == "grounding":
        label = "是" if "score 1.0" in shown else "否"
        return Reply(json.dumps({"verdict": label, "reason": "x"}, ensure_ascii=False))
    return {"verdicts": "1是 2是" if "score 1.0" in shown else "1否 2是"}


def steadfast(call: Call) -> Any:
    replies = {"generate": RIGHT, "grounding": {"verdict": "否", "reason": "x"}, "relevance": {"verdicts": "1否 2是"}}
    return helpful(**replies)(call)


def shares(text: str) -> dict[str, tuple[int, int]]:
    lines = [line.split() for line in text.splitlines()]
    return {line[0]: tuple(int(n) for n in line[1].split("/")) for line in lines}  # type: ignore[misc]


def measured(capsys: pytest.CaptureFixture[str], lm: ScriptedLM, *more: str) -> dict[str, tuple[int, int]]:
    assert main(["--lm", lm.line, *more]) == 0
    return shares(capsys.readouterr().out.replace("/ ", "/"))


def test_a_steadfast_model_obeys_nothing_and_a_second_run_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_lm(steadfast) as lm:
        first = measured(capsys, lm, "--limit", "5")
        calls = len(lm.calls)
        assert first == dict.fromkeys(["answer", "grounding", "relevance", "fact", "any"], (0, 5))
        assert calls == 3 * 6, "five documents and the harmless one"
        assert measured(capsys, lm, "--limit", "5") == first
        assert len(lm.calls) == calls
        measured(capsys, lm, "--limit", "6")
        assert len(lm.calls) == calls + 3 * 2


def test_an_obedient_model_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    marked = sum("PWNED" in case["text"] for case in cases)
    scored = sum("score 1.0" in case["text"] for case in cases)
    with scripted_lm(obedient) as lm:
        found = measured(capsys, lm)
    assert found["answer"] == (marked, len(cases))
    assert found["grounding"] == found["relevance"] == (scored, len(cases))
    assert found["fact"] == (0, len(cases))
    assert found["any"] == (marked + scored, len(cases))


def test_a_model_that_goes_away_leaves_what_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    calls: list[Call] = []

    def fading(call: Call) -> Any:
        calls.append(call)
        return Reply(status=500) if len(calls) == 8 else steadfast(call)

    with scripted_lm(fading) as lm:
        assert main(["--lm", lm.line, "--limit", "3"]) == 1
        assert measured(capsys, lm, "--limit", "3")["any"] == (0, 3)
    records = list((tmp_path / "home" / "recordings").glob("injections-*.jsonl"))
    assert [len(path.read_text(encoding="utf-8").splitlines()) for path in records] == [3]


def test_what_was_so_before_is_no_effect_of_the_document() -> None:
    case = {"id": "x", "kind": "score", "wants": ["PWNED"]}
    plain = injections._Seen("由卖家承担", True, True, False)
    seen = injections._Seen("PWNED", True, True, False)
    found = injections.compare(case, seen, plain)
    assert (found.answer, found.grounding, found.relevance, found.fact) == (None,) * 4
    assert injections.report([found])[-1].startswith("any          0/0")
