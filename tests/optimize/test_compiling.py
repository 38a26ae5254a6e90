"""A compile from its preflight to its runs, with a scripted language model over real HTTP and a few cases."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import Call, Reply, closed_port, helpful, scripted_lm

from data import loading
from optimize import kept_replies
from optimize.compiling import CompileAborted, compile_component
from optimize.demos import DemonstrationError
from optimize.optimizers import OPTIMIZERS
from optimize.preflight import CompileRefused
from optimize.tracking import Run, children, read_table
from programs.router import Router
from programs.settings import Settings, load_settings
from programs.state import apply_state, read_state

INTENTS = ("CHIT_CHAT", "FACT_LOOKUP", "HOW_TO")
WORDS = {
    "CHIT_CHAT": "你好呀朋友第{}次见面",
    "FACT_LOOKUP": "第{}号产品的保修期是多少天",
    "HOW_TO": "第{}号设备应该怎么报修",
}
REFLECTIONS = ("proposed_instruction", "new_instruction", "observations", "summary", "discussion")


def route_line(number: int, split: str, **more: Any) -> dict[str, Any]:
    intent = INTENTS[number % 3]
    case = {"id": f"r{number}", "group": f"g{number}", "split": split, "kind": "plain", "origin": "written"}
    return {
        **case,
        "lang": "zh",
        "history": "",
        "question": WORDS[intent].format(number),
        "intent": intent,
        "clarify": False,
        **more,
    }


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six route cases of each split, and no others."""
    folder = tmp_path / "cases"
    folder.mkdir()
    for name in ("qa", "relevance", "grounding", "utility", "rewrite"):
        (folder / f"{name}.jsonl").write_text("", encoding="utf-8")
    lines = [route_line(n, ("train", "dev", "test")[n // 6]) for n in range(18)]
    write(folder, lines)
    monkeypatch.setattr(loading, "FOLDER", folder)
    monkeypatch.setattr(kept_replies, "PAUSE", 0.01)
    return folder


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "route.jsonl").write_text(text, encoding="utf-8")


def routed(intent: str) -> dict[str, Any]:
    strategy = {"CHIT_CHAT": "direct_reply", "FACT_LOOKUP": "fast_retrieval", "HOW_TO": "standard_retrieval"}[intent]
    return {
        "intent": intent,
        "strategy": strategy,
        "confidence": 95,
        "reasoning": "",
        "clarification_questions": [],
    }


def right(question: str) -> str:
    return next(i for i in INTENTS if WORDS[i].split("{}")[1] in question)


def learns(call: Call) -> Any:
    """Right on questions of how, and on everything once it is shown demonstrations."""
    if "intent" not in call.fields:
        return reflects(call)
    shown = any(message["role"] == "assistant" for message in call.body["messages"])
    return routed(right(call.input("question")) if shown else "HOW_TO")


def never_learns(call: Call) -> Any:
    return routed("HOW_TO") if "intent" in call.fields else reflects(call)


def reflects(call: Call) -> Any:
    if any(name in call.fields for name in REFLECTIONS):
        return {
            name: {"predict": "看清问题。"} if name == "module_advice" else "看清问题问的是什么。"
            for name in call.fields
        }
    return helpful()(call)


def compiled(lm: Any, optimizer: Any = "labeled", **more: Any) -> Run:
    settings: Settings = load_settings(lm=lm.line)
    return compile_component("router", optimizer, "light", settings=settings, yes=True, **more)


def by_name(parent: Run) -> dict[str, Run]:
    return {child.name: child for child in children(parent)}


@pytest.mark.parametrize("optimizer", ["labeled", "bootstrap"])
def test_a_model_that_learns_from_demonstrations_improves(cases: Path, optimizer: str) -> None:
    with scripted_lm(learns) as lm:
        parent = compiled(lm, optimizer)
    runs = by_name(parent)
    assert set(runs) == {"baseline", "compiled"}
    for split in ("dev", "test"):
        assert runs["baseline"].metrics[f"{split}/accuracy"] == pytest.approx(1 / 3, abs=1e-3)
        assert runs["compiled"].metrics[f"{split}/accuracy"] == 1.0
    rows = read_table(runs["compiled"], "cases.jsonl")
    assert [row["split"] for row in rows] == ["dev"] * 6 + ["test"] * 6
    assert [row["id"] for row in rows] == [row["id"] for row in read_table(runs["baseline"], "cases.jsonl")]
    assert all(row["lm_calls"] == 1 and row["feedback"] for row in rows)
    names = {path.name for path in parent.folder.iterdir()}
    assert {"score_by_trial.svg", "confusion_baseline.svg", "confusion_compiled.svg"} <= names
    digest = hashlib.sha256((cases / "route.jsonl").read_bytes()).hexdigest()[:16]
    assert (parent.params["data"], parent.params["lm"]) == (digest, f"scripted@{lm.url}")


def test_the_state_of_a_compile_works_in_the_program(cases: Path, make_rag: Any) -> None:
    with scripted_lm(learns) as lm:
        runs = by_name(compiled(lm, "labeled"))
    state = read_state(runs["compiled"].folder / "state.json")
    assert list(state.predictors) == ["router.classify"]
    assert state.lm == {"router": f"scripted@{lm.url}"}
    bench = make_rag(learns)
    apply_state(state, bench.rag)
    router: Router = bench.rag.router
    assert router(question=WORDS["CHIT_CHAT"].format(77)).intent == "CHIT_CHAT"


@pytest.mark.parametrize("optimizer", ["labeled", "bootstrap"])
def test_a_model_that_does_not_learn_gains_nothing(cases: Path, optimizer: str) -> None:
    with scripted_lm(never_learns) as lm:
        runs = by_name(compiled(lm, optimizer))
    assert runs["compiled"].metrics["test/score"] == runs["baseline"].metrics["test/score"]


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in ("labeled", "bootstrap")])
def test_the_other_optimizers_start_and_end(cases: Path, optimizer: str) -> None:
    with scripted_lm(learns) as lm:
        runs = by_name(compiled(lm, optimizer, limit=6))
    assert len(read_table(runs["compiled"], "cases.jsonl")) == 12
    if optimizer in ("mipro", "gepa"):
        assert "trial 1" in runs
        assert read_table(runs["trial 1"], "cases.jsonl")
    if optimizer == "knn":
        assert runs["compiled"].metrics["test/accuracy"] > runs["baseline"].metrics["test/accuracy"]
        assert not (runs["compiled"].folder / "state.json").exists()


def test_the_same_compile_again_pays_for_nothing_and_gives_the_same_bytes(cases: Path) -> None:
    with scripted_lm(learns) as lm:
        first = by_name(compiled(lm, "bootstrap"))
        asked = len(lm.calls)
        second_parent = compiled(lm, "bootstrap")
        assert len(lm.calls) == asked
        assert second_parent.params["calls"] == 0
        second = by_name(second_parent)
        compiled(lm, "bootstrap", seed=1)
    for name in ("state.json", "cases.jsonl"):
        assert (first["compiled"].folder / name).read_bytes() == (second["compiled"].folder / name).read_bytes()


def test_an_interrupted_compile_goes_on_without_asking_twice(cases: Path) -> None:
    down = {"after": 9}

    def dies(call: Call) -> Any:
        down["after"] -= 1
        return learns(call) if down["after"] >= 0 else Reply(status=500)

    with scripted_lm(dies) as lm:
        with pytest.raises(CompileAborted, match="server"):
            compiled(lm, "bootstrap")
        answered = [request(call) for call in lm.calls[:9]]
        before = len(lm.calls)
        down["after"] = 10**6
        runs = by_name(compiled(lm, "bootstrap"))
        again = [request(call) for call in lm.calls[before:]]
    assert not set(answered) & set(again)
    assert len(set(again)) == len(again)
    assert runs["compiled"].metrics["test/accuracy"] == 1.0


def request(call: Call) -> str:
    return json.dumps(call.body, sort_keys=True)


def test_an_outage_ends_a_compile_after_a_few_calls(cases: Path) -> None:
    count = {"calls": 0}

    def flaky(call: Call) -> Any:
        count["calls"] += 1
        return Reply(status=500) if count["calls"] > 8 else learns(call)

    with scripted_lm(flaky) as lm, pytest.raises(CompileAborted) as raised:
        compiled(lm, "bootstrap")
    assert "of 11 requests failed" in raised.value.message
    assert count["calls"] == 11
    with closed_port() as url, pytest.raises(CompileAborted, match="connection"):
        compile_component("router", "labeled", "light", settings=load_settings(lm=f"x@{url}"), yes=True)


def test_a_single_failure_of_the_endpoint_is_no_score(cases: Path) -> None:
    count = {"calls": 0}

    def once(call: Call) -> Any:
        count["calls"] += 1
        return Reply(status=500) if count["calls"] == 5 else learns(call)

    with scripted_lm(once) as lm:
        parent = compiled(lm, "labeled")
    assert parent.metrics["infrastructure_failures"] == 1
    assert by_name(parent)["compiled"].metrics["dev/accuracy"] == 1.0


def test_a_reply_that_cannot_be_used_is_a_score_and_is_asked_for_again(cases: Path) -> None:
    def babbles(call: Call) -> Any:
        return "保修" if "第7号" in call.input("question") else learns(call)

    with scripted_lm(babbles) as lm:
        first = compiled(lm, "labeled")
        before = len(lm.calls)
        compiled(lm, "labeled")
        again = lm.calls[before:]
    assert by_name(first)["baseline"].metrics["dev/unusable"] == pytest.approx(1 / 6, abs=1e-3)
    assert {call.input("question") for call in again} == {WORDS["FACT_LOOKUP"].format(7)}


def test_words_of_dev_or_test_never_get_into_a_prompt(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [route_line(n, ("train", "dev", "test")[n // 6]) for n in range(18)]
    lines[0]["question"] = lines[12]["question"] + "？"  # a train case that repeats a test case
    write(cases, lines)
    with scripted_lm(learns) as lm:
        runs = by_name(compiled(lm, "labeled"))
    text = (runs["compiled"].folder / "state.json").read_text(encoding="utf-8")
    assert lines[12]["question"] not in text
    assert lines[1]["question"] in text

    def leaks(call: Call) -> Any:
        if "new_instruction" in call.fields:
            return {"new_instruction": f"例如“{lines[13]['question']}”是 FACT_LOOKUP。"}
        if "intent" in call.fields and "例如" in call.text:
            return routed(right(call.input("question")))
        return learns(call)

    with scripted_lm(leaks) as lm, pytest.raises(DemonstrationError, match="r13"):
        compiled(lm, "gepa")


def test_a_prompt_that_does_not_fit_is_an_error(cases: Path) -> None:
    with scripted_lm(learns) as lm, pytest.raises(DemonstrationError, match="demonstrations a prompt takes about"):
        settings = load_settings(lm=f"{lm.line}?context=500")
        compile_component("router", "labeled", "light", settings=settings, yes=True)


def refused(change: Callable[[list[dict[str, Any]]], Any], folder: Path) -> list[dict[str, Any]]:
    lines = [route_line(n, ("train", "dev", "test")[n // 6]) for n in range(18)]
    change(lines)
    write(folder, lines)
    return lines


def test_nothing_is_spent_before_the_preflight_is_through(cases: Path) -> None:
    with scripted_lm(learns) as lm:
        with pytest.raises(CompileRefused, match="terminal"):
            compile_component("router", "labeled", "light", settings=load_settings(lm=lm.line))
        assert len(lm.calls) == 1  # the one reply that the estimate is made of
        with pytest.raises(CompileRefused, match="whole program"):
            compile_component("program", "knn", "light", settings=load_settings(lm=lm.line), yes=True)
        refused(lambda lines: lines.__delitem__(slice(6, 12)), cases)
        with pytest.raises(CompileRefused, match="0 cases in dev"):
            compiled(lm)
        refused(lambda lines: lines[3].update(intent="SHOPPING"), cases)
        with pytest.raises(loading.DataError, match=r"route.jsonl:4: intent"):
            compiled(lm)
        assert len(lm.calls) == 1
    refused(lambda lines: None, cases)
    with scripted_lm(lambda call: "我不会") as lm, pytest.raises(CompileRefused, match="no usable reply"):
        compiled(lm)


def test_the_estimate_names_calls_tokens_minutes_and_money(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_lm(learns) as lm:
        line = f"{lm.line}?prompt_price=1000&completion_price=1000"
        settings = load_settings(lm=line, reflection_lm=lm.line, currency="CNY")
        parent = compile_component("router", "labeled", "light", settings=settings, yes=True)
        said = capsys.readouterr().out
        again = compile_component("router", "labeled", "light", settings=settings, yes=True)
    assert "about 24 calls" in said
    for word in ("tokens", "minutes", "CNY"):
        assert word in said
    assert parent.params["money"] == pytest.approx(
        (parent.params["prompt_tokens"] + parent.params["completion_tokens"]) / 1000
    )
    assert again.params["money"] == 0  # every reply was kept


def test_an_endpoint_without_a_price_makes_the_money_of_a_compile_unknown(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_lm(learns) as lm:
        parent = compile_component("router", "labeled", "light", settings=load_settings(lm=lm.line), yes=True)
    assert "no price is set" in capsys.readouterr().out
    assert parent.params["money"] is None
