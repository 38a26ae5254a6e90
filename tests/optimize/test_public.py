"""Public rows are read strictly, measured without training on them, and only asked about on request."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import Call, Reply, ScriptedLM, scripted_lm

from data.loading import DataError
from data.schema import UtilityCase
from optimize import public, public_judges, recording
from optimize.gold import GoldPassages
from optimize.judge_fit import FEATURES, area, balanced_accuracy
from optimize.public import main
from optimize.public_rows import MOST_SHARING, GroundingRow, RouteRow, UtilityRow, load_rows, row_groups
from optimize.statistics import area_interval, balanced_interval
from programs import build
from programs.classifier import load_classifier
from programs.judges import UtilityJudge
from programs.state import CompiledState, judge_path, signature_digest
from programs.weighing import JudgeState, LinearModel
from signatures.judging import JudgeUtility

GOOD, BAD = "可以，先登录再点提交。", "天气很好。"


def write(folder: Path, task: str, rows: Sequence[dict[str, Any]]) -> Path:
    shared = {"lang": "zh", "source": "handmade", "unheard-of": 1}
    lines = [json.dumps({"id": f"{task}-{n}", **shared, **row}, ensure_ascii=False) for n, row in enumerate(rows)]
    folder.mkdir(exist_ok=True)
    (folder / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def utility_rows(count: int) -> list[dict[str, Any]]:
    """Good and bad answers in turn; the last is a refusal, which a rule decides."""
    rows: list[dict[str, Any]] = [
        {"question": f"怎么申请第{n}种假？", "answer": BAD if n % 2 else GOOD, "label": (n + 1) % 2}
        for n in range(count - 1)
    ]
    return [*rows, {"question": "怎么报销？", "answer": "资料中没有相关信息。", "label": 0}]


def own_cases() -> list[UtilityCase]:
    return [
        UtilityCase(
            id=f"own-{n}",
            group=f"g{n // 2}",
            split="test" if n >= 24 else "train",
            kind="written",
            origin="written",
            lang="zh",
            question=f"如何办理第{n}号手续？",
            answer=f"第{n}号手续：先填表，再交费。" if n % 2 else f"第{n}号很有意思",
            passed=bool(n % 2),
        )
        for n in range(26)
    ]


def judging(call: Call) -> Reply:
    """Right about every answer, but never very sure."""
    right = GOOD in call.text or "先填表" in call.text
    if call.signature == "relevance":
        return Reply(json.dumps({"verdicts": "1是"}, ensure_ascii=False), probability=0.7)
    return Reply('{"verdict": "是", "reason": "x"}', probability=0.7 if right else 0.6)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedder: Any) -> Run:
    """The command on a folder; gives what `--json` wrote. Our own cases are the few of this file."""
    for module in (public, build):
        monkeypatch.setattr(module, "load_embedder", lambda spec: embedder)
    for module in (public_judges, recording):
        monkeypatch.setattr(module, "judge_cases", lambda name: own_cases() if name == "utility" else [])
        monkeypatch.setattr(module, "sample_passages", lambda: GoldPassages([]))

    def command(folder: Path, lm: ScriptedLM, *more: str) -> dict[str, Any]:
        file = tmp_path / "figures.json"
        assert main([str(folder), "--lm", lm.line, "--json", str(file), *more]) == 0
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    return command


def line(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one for one in report["lines"] if name in one["name"]]
    assert len(found) == 1, [one["name"] for one in report["lines"]]
    return found[0]


def test_a_wrong_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "grounding", [{"question": "?", "passages": [], "answer": "x", "label": 2}])
    with pytest.raises(DataError, match=r"grounding\.jsonl:1: label: .*; passages: "):
        load_rows(tmp_path, GroundingRow)
    write(tmp_path, "route", [{"question": "在吗", "intent": "SHOPPING"}])
    with scripted_lm(judging) as lm:
        assert main([str(tmp_path), "--task", "route", "--lm", lm.line]) == 1
    assert "route.jsonl:1: intent" in capsys.readouterr().err


def test_quick_and_limited_rows(tmp_path: Path) -> None:
    write(tmp_path, "route", [{"question": f"q{n}", "intent": "HOW_TO", "quick": n % 3 == 0} for n in range(9)])
    assert [row.question for row in load_rows(tmp_path, RouteRow, quick=True, limit=2)] == ["q0", "q3"]
    assert len(load_rows(tmp_path, RouteRow)) == 9


def test_rows_of_one_question_are_one_group_but_not_those_of_a_form(tmp_path: Path) -> None:
    questions = ["same", "same", *["what does it say?"] * (MOST_SHARING + 1)]
    write(tmp_path, "utility", [{"question": q, "answer": "a", "label": 1} for q in questions])
    groups = row_groups(load_rows(tmp_path, UtilityRow))
    assert groups[0] == groups[1]
    assert len(set(groups)) == MOST_SHARING + 2


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    write(tmp_path, "route", [{"question": "在吗", "intent": "CHIT_CHAT"}])
    assert main([str(tmp_path), "--task", "route", "--task", "utility"]) == 1
    assert capsys.readouterr().err.endswith("holds no utility.jsonl\n")


def test_intervals_of_both_labels_hold_the_figures_that_calibrating_reports() -> None:
    chance = random.Random(5)
    labels = [chance.random() < 0.3 for _ in range(120)]
    values = [round(0.3 * label + chance.random(), 1) for label in labels]
    right = [(v >= 0.6) == label for v, label in zip(values, labels, strict=True)]
    groups = [str(n // 2) for n in range(120)]
    value, low, high = balanced_interval(right, labels, groups)
    assert value == round(balanced_accuracy([v >= 0.6 for v in values], labels), 3)
    assert low < value < high
    value, low, high = area_interval(values, labels, groups)
    assert value == round(area(values, labels), 3)
    assert low < value < high
    assert area_interval([0.1, 0.9], [True, True], ["a", "b"])[0] == 0.5
    assert balanced_interval([True, False], [True, True], ["a", "b"])[0] == 0.5
    assert balanced_interval([], [], []) == [0.0, 0.0, 0.0]
    assert balanced_interval([True, True, False], [True, False, True], ["a", "a", "b"])[0] == 0.75


def test_the_router_decides_what_it_can_and_calls_nobody(
    tmp_path: Path, run: Run, embedder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"你好呀": "CHIT_CHAT", "年假有几天？": "FACT_LOOKUP", "怎么重置密码？": "HOW_TO", "嗯那个东西": "UNKNOWN"}
    folder = write(tmp_path / "public", "route", [{"question": q, "intent": i} for q, i in asked.items()])
    with scripted_lm(judging) as lm:
        report = run(folder, lm, "--task", "route")["tasks"]["route"]
        assert not lm.calls
    classifier = load_classifier(embedder.name)
    assert classifier is not None
    for row, question in zip(report["cases"], asked, strict=True):
        opinion = classifier.classify(question, embedder.encode_query([question])[0])
        # A language model that was not measured beside the classifier decides the rest.
        assert row["decided"] == (opinion.sure or opinion.must_ask)
        assert not row["decided"] or row["said"] == opinion.best
    assert sum(sum(said.values()) for said in report["tables"]["label \\ said"].values()) == 4
    assert line(report, "decided without a call")["cases"] == sum(row["decided"] for row in report["cases"])
    assert "classifier where it is sure" in capsys.readouterr().out


def test_asking_back_is_measured_both_ways(tmp_path: Path, run: Run) -> None:
    rows = [{"question": "那个呢？", "label": 1, "history": [{"role": "user", "text": "你好"}]}]
    rows += [{"question": "年假有几天？", "label": 0}, {"question": "员工怎么申请年假？", "label": 0}]
    folder = write(tmp_path / "public", "clarify", rows)
    with scripted_lm(judging) as lm:
        report = run(folder, lm, "--task", "clarify")["tasks"]["clarify"]
        assert not lm.calls
    figures = line(report, "router")["figures"]
    assert (figures["recall"][0], figures["in vain"][0]) == (1.0, 0.0)
    assert line(report, "own probability")["figures"]["AUC"][0] == 1.0
    assert any(note.startswith("1 rows have earlier turns") for note in report["notes"])


def test_only_recording_asks_and_it_goes_on_where_it_stopped(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "public", "utility", utility_rows(12))
    with scripted_lm(judging) as lm:
        first = run(folder, lm)["tasks"]["utility"]
        assert not lm.calls
        assert [one["name"] for one in first["lines"]] == ["(1) features alone, fitted to 24 own cases"]
        assert any(note.endswith(": 12") and "not recorded" in note for note in first["notes"])
        run(folder, lm, "--record", "--limit", "5")
        assert len(lm.calls) == 5
        second = run(folder, lm, "--record")["tasks"]["utility"]
        assert len(lm.calls) == 11, "the refusal is decided by a rule"
        assert "public utility" not in capsys.readouterr().err, "fewer than ten, and none failed"
        assert run(folder, lm)["tasks"]["utility"] == second
        assert len(lm.calls) == 11
    names = [path.name for path in (tmp_path / "home" / "recordings").iterdir()]
    assert len(names) == 1
    assert names[0].startswith("public-utility-")
    alone = line(second, "language model")
    assert (alone["cases"], alone["threshold"]) == (12, 0.5)
    assert alone["figures"]["AUC"][0] == 1.0
    # It says yes to all that it judges; the refusal is one of six to fail.
    assert alone["figures"]["balanced accuracy"][0] == pytest.approx(0.5 + 0.5 / 6, abs=0.001)
    assert second["cases"][-1]["scores"]["language model"] == 0.0
    assert any("too few" in note for note in second["notes"])
    assert all("怎么" not in json.dumps(case, ensure_ascii=False) for case in second["cases"])


def test_our_own_recordings_choose_threshold_and_weights(tmp_path: Path, run: Run) -> None:
    folder = write(tmp_path / "public", "utility", utility_rows(12))
    with scripted_lm(judging) as lm:
        assert recording.main(["--judge", "utility", "--lm", lm.line]) == 0
        report = run(folder, lm, "--record")["tasks"]["utility"]
    own = [path.name for path in (tmp_path / "home" / "recordings").glob("utility-*.jsonl")]
    assert len(own) == 1, "public opinions are kept apart"
    chosen = line(report, "threshold of 24 own cases")
    assert 0.6 < chosen["threshold"] < 0.7
    assert chosen["figures"]["balanced accuracy"] == [1.0, 1.0, 1.0]
    assert line(report, "weighed, fitted to 24 own cases")["figures"]["AUC"][0] > 0.8
    assert any(note.startswith("accuracy that weighing adds") for note in report["notes"])


def test_what_is_promoted_is_what_is_measured(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, embedder: Any
) -> None:
    folder = write(tmp_path / "public", "utility", utility_rows(6))

    def only(name: str, weight: float, bias: float) -> LinearModel:
        return LinearModel(features=(name,), center=(0.0,), scale=(1.0,), weights=(weight,), bias=bias)

    alone = only(next(iter(FEATURES["utility"])), 0.0, 0.0)
    # Log-odds of 0.7 and of 0.6, with the border between them.
    state = JudgeState(weighed=only("lm", 1.0, -0.6), alone=alone, threshold=0.5, low=0.4, high=0.6)
    with scripted_lm(judging) as lm:
        compiled = CompiledState(
            lm={"judge": lm.line},
            embedder=embedder.name,
            signatures={judge_path("utility"): signature_digest(JudgeUtility)},
            judges={"utility": state},
        )
        (tmp_path / "state.json").write_text(compiled.model_dump_json(), encoding="utf-8")
        monkeypatch.setenv("ADAPTIVE_RAG_COMPILED", str(tmp_path / "state.json"))
        report = run(folder, lm, "--record")["tasks"]["utility"]
    weighed = line(report, "weighed, as promoted")
    assert (weighed["threshold"], weighed["figures"]["balanced accuracy"][0]) == (0.5, 1.0)


def test_passages_reach_the_judge_and_rules_need_no_call(tmp_path: Path, run: Run) -> None:
    folder = write(tmp_path / "public", "relevance", [{"question": "几天？", "passages": ["年假五天。"], "label": 1}])
    texts = ["年假共五天。", "病假另算。"]
    rows = [{"question": "几天？", "passages": texts, "answer": a, "label": 0} for a in ("另算。", "共 99 天。", "")]
    write(folder, "grounding", rows)
    with scripted_lm(judging) as lm:
        found = run(folder, lm, "--record")["tasks"]
        assert [call.signature for call in lm.calls] == ["relevance", "grounding"]
    assert "年假五天。" in lm.calls[0].text
    assert all(text in lm.calls[1].text for text in texts)
    assert [case["scores"]["language model"] for case in found["grounding"]["cases"]] == [0.6, 0.0, 0.0]
    assert any("decided by a rule" in note and note.endswith(": 2") for note in found["grounding"]["notes"])


def test_a_recording_of_our_own_cases_keeps_its_name(run: Run, tmp_path: Path) -> None:
    from programs.settings import load_settings

    with scripted_lm(judging) as lm:
        settings = load_settings(lm=lm.line)
        judge = UtilityJudge(recording.plain_resources(settings))
        own, other = (recording.Recording(judge, settings, "x", *source).path.name for source in ((), ("public",)))
    assert own.startswith("utility-")
    assert other == f"public-{own}"
