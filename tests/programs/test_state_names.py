"""The names under which compiled state is saved: renaming an attribute is a change of file format."""

import copy
import json
from pathlib import Path
from typing import Any

import dspy
import pytest

NAMES = [
    "router.classify",
    "router.ask_back",
    "reply",
    "self_rag.generate",
    "self_rag.judges.relevance.judge",
    "self_rag.judges.grounding.judge",
    "self_rag.judges.utility.judge",
    "self_rag.rewriter.rewrite",
    "self_rag.rewriter.resolve",
    "self_rag.rewriter.decompose",
    "self_rag.rewriter.paraphrase",
    "self_rag.rewriter.imagine",
]


def test_the_predictors_have_these_names_and_no_others(make_rag: Any) -> None:
    assert [name for name, _ in make_rag().rag.named_predictors()] == NAMES


def test_the_saved_state_has_these_keys(make_rag: Any, tmp_path: Path) -> None:
    make_rag().rag.save(tmp_path / "state.json")
    saved = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
    assert set(saved) - {"metadata"} == set(NAMES)


def test_state_survives_saving_and_loading(make_rag: Any, tmp_path: Path) -> None:
    first, second = make_rag().rag, make_rag()
    first.router.classify.signature = first.router.classify.signature.with_instructions("请判断意图。")
    first.router.classify.demos = [dspy.Example(history="", question="怎么退货", intent="HOW_TO")]
    first.save(tmp_path / "state.json")
    second.rag.load(tmp_path / "state.json")
    assert second.rag.router.classify.signature.instructions == "请判断意图。"
    assert second.ask("退货运费谁付").status == "answered"
    assert "请判断意图。" in second.lm.calls[0].text
    assert "怎么退货" in second.lm.calls[0].text


@pytest.mark.parametrize("way", [copy.deepcopy, lambda rag: rag.deepcopy(), lambda rag: rag.reset_copy()])
def test_a_copy_shares_connections_and_stores_and_nothing_else(make_rag: Any, way: Any) -> None:
    """G5: optimizers copy programs; a second store or client would hold the same file twice."""
    bench = make_rag()
    copied = way(bench.rag)
    assert copied is not bench.rag
    assert copied.resources is bench.rag.resources
    assert copied.self_rag.judges.grounding.resources is bench.rag.resources
    assert copied.router.classify is not bench.rag.router.classify
    copied.router.classify.demos = [{"question": "x"}]
    assert bench.rag.router.classify.demos == []
    assert copied.deepcopy()(question="退货运费谁付").record.status == "answered"


def test_no_secret_and_no_language_model_is_in_the_state(
    make_rag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2: also after the program has been used."""
    monkeypatch.setenv("MY_KEY", "sk-CANARY-1")
    bench = make_rag(options="?key=MY_KEY", milvus_token="CANARY-2")
    bench.ask("退货运费谁付，电话 13800000000")
    assert bench.lm.calls[0].headers["authorization"] == "Bearer sk-CANARY-1"
    bench.rag.save(tmp_path / "state.json")
    text = (tmp_path / "state.json").read_text(encoding="utf-8") + json.dumps(bench.rag.dump_state(), default=str)
    assert "CANARY" not in text
    assert "13800000000" not in text
    assert bench.lm.url not in text
    for name, predict in bench.rag.named_predictors():
        state = predict.dump_state()
        assert state["lm"] is None, name
        assert state["demos"] == state["traces"] == state["train"] == [], name


def test_no_secret_is_in_a_record_or_in_how_things_are_shown(make_rag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-CANARY-1")
    bench = make_rag(options="?key=MY_KEY")
    record = bench.ask("退货运费谁付")
    lms = bench.rag.resources.lms
    shown = (
        f"{record!r}{bench.rag!r}{bench.rag.resources!r}{lms['router']!r}{lms['router'].kwargs}{lms.identity('router')}"
    )
    assert "CANARY" not in shown
    with pytest.raises(TypeError, match="cannot be saved"):
        lms["router"].dump_state()


def test_an_optimizer_of_dspy_can_compile_the_program(make_rag: Any) -> None:
    bench = make_rag()
    example = dspy.Example(question="退货运费谁付").with_inputs("question")
    optimizer = dspy.BootstrapFewShot(
        metric=lambda gold, made, trace=None: made.status == "answered", max_bootstrapped_demos=1, max_labeled_demos=0
    )
    compiled = optimizer.compile(bench.rag, trainset=[example])
    assert len(compiled.self_rag.generate.demos) == 1
    assert bench.rag.self_rag.generate.demos == []
    assert compiled.resources is bench.rag.resources
    assert compiled(question="退货运费谁付").record.status == "answered"
