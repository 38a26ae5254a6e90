"""A judge is weighed from recorded opinions, over real HTTP, and the result can be held against a compiled prompt."""

import json
from pathlib import Path

import pytest
from scripted_lm import Call, Reply, helpful, scripted_lm

from data import loading
from optimize import gate, kept_replies
from optimize.calibrate import calibrate_judge
from optimize.cases import data_digest, read_cases
from optimize.compiling import compile_component
from optimize.tracking import Run, children
from programs.settings import load_settings

THINGS = ("保修期", "年假", "打车费", "门禁卡", "会议室", "工位", "体检", "培训费", "加班餐", "住宿")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty cases of the utility judge: an answer that answers, and one that evades, to each question."""
    folder = tmp_path / "cases"
    folder.mkdir()
    for name in ("qa", "relevance", "grounding", "route", "rewrite"):
        (folder / f"{name}.jsonl").write_text("", encoding="utf-8")
    lines = []
    for number in range(20):
        question = f"{THINGS[number % 10]}的第{number}条规定是几天"
        split = ("train", "train", "dev", "test")[number % 4]
        for passed, answer in ((True, f"规定是{number + 2}天。"), (False, "请您联系相关部门了解。")):
            case = {"id": f"u{number}{passed:d}", "group": f"g{number}", "split": split, "kind": "plain"}
            text = {"origin": "written", "lang": "zh", "question": question, "answer": answer, "passed": passed}
            lines.append(json.dumps({**case, **text}, ensure_ascii=False) + "\n")
    (folder / "utility.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(loading, "FOLDER", folder)
    monkeypatch.setattr(kept_replies, "PAUSE", 0.01)
    return folder


def judges(call: Call) -> Reply | dict[str, object] | str:
    """An endpoint that is for a pass a little too often, and tells right from wrong by its probability."""
    if call.signature != "utility":
        return helpful()(call)
    sure = "联系相关部门" not in call.body["messages"][-1]["content"]
    text = {name: "是" if name == "verdict" else "看过了" for name in call.fields}
    return Reply(
        json.dumps(text, ensure_ascii=False),
        probability=0.9 if sure else 0.6,
        usage={"prompt_tokens": 150, "completion_tokens": 16},
    )


def child(parent: Run, name: str) -> Run:
    return next(run for run in children(parent) if run.name == name)


def test_a_weighed_judge_and_a_compiled_prompt_can_be_held_against_each_other(folder: Path) -> None:
    with scripted_lm(judges) as lm:
        weighed = calibrate_judge("utility", line=lm.line, with_worth=False, missing=True)
        asked = len(lm.calls)
        again = calibrate_judge("utility", line=lm.line, with_worth=False, missing=True)
        assert len(lm.calls) == asked, "an opinion that was recorded is not paid for again"
        compiled = compile_component("utility", "labeled", "light", settings=load_settings(lm=lm.line), yes=True)
    baseline, calibrated = child(weighed, "baseline"), child(weighed, "calibrated")
    before, after = read_cases(baseline), read_cases(calibrated)
    test = [row for row in after if row.split == "test"]
    assert len(test) == 10
    assert sum(r.score for r in test) > sum(r.score for r in before if r.split == "test")
    assert [row.score for row in read_cases(child(again, "calibrated"))] == [row.score for row in after]
    assert {row.tokens for row in after} == {166}
    verdict = gate.judge(
        after,
        read_cases(child(compiled, "compiled")),
        data_then=str(calibrated.params["data"]),
        data_now=data_digest("utility"),
        max_cost=1e9,
    )
    named = {check.name: check for check in verdict.checks}
    for cost in ("lm_calls", "tokens", "seconds"):
        assert named[cost].passed and "→" in named[cost].text
    assert named["data"].passed and named["cases"].passed
