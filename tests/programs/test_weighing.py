"""A judge that weighs evidence: a doubtful language model is outvoted, never trusted beyond what was seen."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted_lm import Reply, helpful

from programs.features import (
    FORM,
    GROUNDING,
    RELEVANCE,
    UTILITY,
    grounding_features,
    relevance_features,
    utility_features,
)
from programs.similarity import Similarity
from programs.weighing import JudgeState, LinearModel, log_odds
from signatures.records import Passage

D1 = "本店支持七天无理由退货，运费由买家承担。"
MEAL = Passage(id="m", document_id="m", title="餐补", text="正式员工餐补每天 30 元。实习生餐补每天 20 元。")
LEAVE = Passage(id="l", document_id="l", title="年假", section="天数", text="入职满一年有 5 天年假，不满一年没有。")


def model(**weights: float) -> LinearModel:
    names = tuple(weights)
    zeros, ones = tuple(0.0 for _ in names), tuple(1.0 for _ in names)
    return LinearModel(features=names, center=zeros, scale=ones, weights=tuple(weights.values()), bias=0.0)


def state(weighed: LinearModel, alone: LinearModel, threshold: float = 0.5) -> JudgeState:
    return JudgeState(weighed=weighed, alone=alone, threshold=threshold, low=0.3, high=0.7)


def grounding_verdict(label: str, probability: float) -> Reply:
    return Reply(json.dumps({"verdict": label, "reason": "模型的理由"}, ensure_ascii=False), probability=probability)


# -- The model -------------------------------------------------------------------------------------


def test_the_probability_follows_the_evidence() -> None:
    one = model(lm=1.0, overlap=2.0)
    assert one.probability({"lm": 0.0, "overlap": 0.0}) == 0.5
    assert one.probability({"lm": 1.0, "overlap": 1.0}) == pytest.approx(1 / (1 + math.exp(-3)))


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_any_feature_gives_a_probability_and_no_single_one_outweighs_everything(a: float, b: float) -> None:
    value = model(lm=1.0, overlap=1.0).probability({"lm": a, "overlap": b})
    assert 0.0 <= value <= 1.0
    assert model(lm=1.0, overlap=1.0).probability({"lm": 1e9, "overlap": -4.0}) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "change", [{"weights": (1.0,)}, {"scale": (0.0, 1.0)}, {"bias": math.nan}, {"center": (math.inf, 0.0)}]
)
def test_a_model_with_numbers_that_do_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LinearModel.model_validate({**model(lm=1.0, overlap=1.0).model_dump(), **change})


def test_log_odds_of_a_certainty_are_finite() -> None:
    assert log_odds(1.0) == pytest.approx(-log_odds(0.0))
    assert log_odds(1.0) < 7.1


# -- The features ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def similarity(embedder: Any) -> Similarity:
    return Similarity(embedder)


def test_every_named_feature_is_there_and_finite(similarity: Similarity) -> None:
    for question, answer in [("餐补多少", "30 元"), ("?", "!"), ("how much", "  x "), ("餐补" * 200, "[1]")]:
        found = relevance_features(question, [MEAL, LEAVE], similarity)
        assert [set(one) for one in found] == [{*RELEVANCE, *FORM}] * 2
        grounded = grounding_features(question, answer, [MEAL], similarity)
        useful = utility_features(question, answer, similarity)
        assert (set(grounded), set(useful)) == (set(GROUNDING), set(UTILITY))
        assert all(math.isfinite(v) for v in [*found[0].values(), *grounded.values(), *useful.values()])


def test_the_sentence_that_answers_is_nearer_than_a_passage_about_something_else(similarity: Similarity) -> None:
    meal, leave = relevance_features("实习生一天餐补多少钱", [MEAL, LEAVE], similarity)
    assert meal["nearest"] > leave["nearest"]
    assert meal["cosine_gap"] == 0 < leave["cosine_gap"]
    assert meal["overlap"] > leave["overlap"]


def test_a_number_from_another_groups_sentence_is_stray(similarity: Similarity) -> None:
    right = grounding_features("餐补", "实习生餐补每天 20 元。", [MEAL], similarity)
    wrong = grounding_features("餐补", "实习生餐补每天 30 元。", [MEAL], similarity)
    assert (right["stray_numbers"], wrong["stray_numbers"]) == (0.0, 1.0)
    assert right["missing_numbers"] == wrong["missing_numbers"] == 0.0


@pytest.mark.parametrize(
    ("question", "good", "bad", "feature"),
    [
        ("年假有几天？", "满一年有 5 天。", "年假需要提前申请。", "number_due"),
        ("怎么申请年假？", "先登录系统，再点击请假。", "年假很重要。", "steps_due"),
        ("给我重启服务的命令", "`systemctl restart api`", "重启服务需要权限。", "code_due"),
        ("年假有几天？", "满一年有 5 天。", "具体规定请咨询相关部门。", "empty_talk"),
    ],
)
def test_what_the_question_asks_for_is_looked_for(
    similarity: Similarity, question: str, good: str, bad: str, feature: str
) -> None:
    found = utility_features(question, good, similarity)[feature]
    other = utility_features(question, bad, similarity)[feature]
    assert found != other
    assert (found > other) == (feature != "empty_talk")


# -- The judges ------------------------------------------------------------------------------------


def test_evidence_outvotes_a_language_model_that_says_yes(make_rag: Any) -> None:
    bench = make_rag(
        helpful(grounding=grounding_verdict("是", 0.9)),
        judges={"grounding": state(model(lm=0.1, stray_numbers=-3.0), model(overlap=1.0))},
    )
    judge = bench.rag.judges.grounding
    good = judge(question="餐补", answer="实习生餐补每天 20 元。", passages=[MEAL]).verdict
    bad = judge(question="餐补", answer="实习生餐补每天 30 元。", passages=[MEAL]).verdict
    assert (good.passed, bad.passed) == (True, False)
    assert bad.evidence["stray_numbers"] == 1.0
    assert bad.evidence["lm"] == pytest.approx(0.9)
    assert "其他依据" in bad.reason
    assert good.reason == "模型的理由"


def test_the_opinion_of_the_language_model_counts_where_the_evidence_is_the_same(make_rag: Any) -> None:
    for label, probability, passed in (("是", 0.95, True), ("否", 0.05, False)):
        bench = make_rag(
            helpful(utility=grounding_verdict(label, probability)),
            judges={"utility": state(model(lm=1.0), model(overlap=1.0))},
        )
        assert bench.rag.judges.utility(question="退货要几天", answer="七天。").verdict.passed is passed


@pytest.mark.parametrize(("weight", "score"), [(9.0, "sure"), (0.0, None)])
def test_without_a_language_model_only_clear_evidence_decides(make_rag: Any, weight: float, score: Any) -> None:
    bench = make_rag(
        helpful(grounding=Reply(status=500)),
        judges={"grounding": state(model(lm=1.0), model(overlap=weight))},
    )
    found = bench.rag.judges.grounding(question="退货", answer=D1, passages=[D1]).verdict
    assert found.source == "check"
    assert found.error_kind == "server"
    if score is None:
        assert (found.score, found.passed) == (None, False)
    else:
        assert found.passed


def test_relevance_weighs_every_passage_by_itself(make_rag: Any) -> None:
    bench = make_rag(
        helpful(relevance=lambda call: Reply('{"verdicts": "1是 2是"}', probability=0.9)),
        judges={"relevance": state(model(lm=0.1, overlap=4.0), model(overlap=1.0), threshold=0.8)},
    )
    found = bench.rag.judges.relevance(question="餐补每天", passages=[MEAL, LEAVE]).verdict
    assert found.passage_scores["m"] > 0.8 > found.passage_scores["l"]


def test_no_state_leaves_the_score_to_the_language_model(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=grounding_verdict("是", 0.9)))
    found = bench.rag.judges.grounding(question="退货", answer=D1, passages=[D1]).verdict
    assert found.score == pytest.approx(0.9)
