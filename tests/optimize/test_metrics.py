"""Each branch of each metric: what scores, what does not, and a sentence that says what was expected."""

from typing import Any

import dspy
import pytest

from data.schema import Gold, QuestionCase, RewriteCase, RouteCase, UtilityCase
from optimize import metrics
from signatures.records import Answer, Passage, RouteDecision, Usage

BASE: dict[str, Any] = {"id": "c", "group": "g", "split": "train", "kind": "plain", "origin": "written", "lang": "zh"}
PASSAGES = [Passage(id="a", document_id="d", text="冰箱保修 24 个月，压缩机保修十年。")]
GOLD = (Gold(document_id="d", quote="冰箱保修"),)
ASKED = QuestionCase(
    **BASE, question="冰箱保修多久", intent="FACT_LOOKUP", answerable=True, facts=(("24 个月", "两年"),), gold=GOLD,
    answer="冰箱保修 24 个月。",
)  # fmt: skip
UNKNOWN = QuestionCase(**BASE, question="冰箱能飞吗", intent="FACT_LOOKUP", answerable=False)


def route_case(**more: Any) -> RouteCase:
    return RouteCase(
        **BASE, **{"history": "", "question": "保修多久", "intent": "FACT_LOOKUP", "clarify": False, **more}
    )


def routed(intent: str = "FACT_LOOKUP", strategy: str = "fast_retrieval", confidence: float = 1.0) -> dspy.Prediction:
    return dspy.Prediction(intent=intent, strategy=strategy, confidence=confidence)


def test_route_wants_the_intent_the_question_back_and_an_honest_confidence() -> None:
    assert metrics.route(route_case(), routed()).score == 1.0
    wrong = metrics.route(route_case(), routed("HOW_TO"))
    assert (wrong.score, "FACT_LOOKUP" in wrong.feedback, "misleads" in wrong.feedback) == (0.0, True, True)
    assert metrics.route(route_case(), routed("HOW_TO", confidence=0.2)).score > wrong.score
    unclear = route_case(clarify=True)
    assert metrics.route(unclear, routed(strategy="clarify_needed")).score == 1.0
    assert metrics.route(unclear, routed()).score < 0.5
    needless = metrics.route(route_case(), routed(strategy="clarify_needed"))
    assert needless.score < 0.5
    assert "asking back is wrong" in needless.feedback


def test_a_reply_that_cannot_be_used_scores_nothing_even_where_unknown_is_right() -> None:
    made = metrics.route(route_case(intent="UNKNOWN"), dspy.Prediction(error_kind="parse"))
    assert (made.score, "parse" in made.feedback) == (0.0, True)
    case = UtilityCase(**BASE, question="q", answer="a", passed=False)
    assert metrics.judge(case, dspy.Prediction(error_kind="truncated")).score == 0.0
    assert metrics.judge(case, None).score == 0.0


def test_a_judge_agrees_with_the_label_or_not() -> None:
    case = UtilityCase(**BASE, question="q", answer="a", passed=False)
    assert metrics.judge(case, dspy.Prediction(score=0.1, passed=False)).score == 1.0
    wrong = metrics.judge(case, dspy.Prediction(score=0.9, passed=True))
    assert (wrong.score, "否" in wrong.feedback) == (0.0, True)
    assert metrics.judge(case, dspy.Prediction(score=None, passed=False)).score == 0.0


def test_a_rewritten_query_must_find_more_than_the_failed_one() -> None:
    case = RewriteCase(**BASE, question="q", failed_query="f", reasons="r", gold=GOLD, reference="正式说法")
    assert metrics.rewriter(case, ["x", "a"], ["x"], ["a"]).score == 1.0
    same = metrics.rewriter(case, ["a"], ["a"], ["a"])
    assert (same.score, "正式说法" in same.feedback) == (0.5, True)
    assert metrics.rewriter(case, ["x"], ["a"], ["a"]).score == 0.0


@pytest.mark.parametrize(
    ("answer", "low", "high", "said"),
    [
        ("冰箱保修 24 个月[1]。", 1.0, 1.0, "Every fact"),
        ("冰箱保修 ２４个月[1]。", 1.0, 1.0, "Every fact"),
        ("冰箱保修 24 个月。", 0.85, 0.95, "cite"),
        ("冰箱保修 36 个月[1]。", 0.0, 0.5, "do not hold 36"),
        ("压缩机保修十年[1]。", 0.2, 0.5, "lacks 24 个月"),
        ("", 0.0, 0.0, "hold the answer"),
    ],
)
def test_an_answer_holds_the_facts_nothing_else_and_its_sources(
    answer: str, low: float, high: float, said: str
) -> None:
    made = metrics.generator(ASKED, answer, PASSAGES)
    assert low <= made.score <= high
    assert said in made.feedback


def test_an_unanswerable_question_is_declined() -> None:
    assert metrics.generator(UNKNOWN, "", PASSAGES).score == 1.0
    assert metrics.generator(UNKNOWN, "能飞[1]。", PASSAGES).score == 0.0


def record(status: str, answer: str = "", calls: int = 0, strategy: str = "fast_retrieval") -> Answer:
    decision = RouteDecision(intent="FACT_LOOKUP", confidence=1.0, strategy=strategy)  # type: ignore[arg-type]
    return Answer(
        question="q", answer=answer, status=status, stop_reason="judges_passed",  # type: ignore[arg-type]
        decision=decision, strategy=strategy, usage=Usage(lm_calls=calls),  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_program_is_paid_for_the_right_outcome_and_charged_for_calls() -> None:
    answered = "保修 24 个月[1]。"
    assert metrics.program(ASKED, record("answered", answered)).score == 1.0
    assert metrics.program(ASKED, record("answered", answered, calls=4)).score == pytest.approx(0.96)
    assert metrics.program(ASKED, record("no_evidence", calls=1)).score == 0.0
    assert metrics.program(UNKNOWN, record("no_evidence")).score == 1.0
    assert metrics.program(UNKNOWN, record("answered", answered)).score == 0.0
    unclear = route_case(clarify=True)
    assert metrics.program(unclear, record("clarify", strategy="clarify_needed")).score == 1.0
    assert metrics.program(unclear, record("answered")).score == 0.0
    chat = route_case(intent="CHIT_CHAT")
    assert metrics.program(chat, record("answered", strategy="direct_reply")).score == 1.0


def test_texts_are_compared_in_characters_after_nfkc() -> None:
    assert metrics.exact_match("ＡＢＣ １２３ 元[1]。", "abc123元")
    assert not metrics.exact_match("24 个月", "36 个月")
    assert metrics.f1("保修两年", "保修两年") == 1.0
    assert metrics.f1("保修", "保修两年") == pytest.approx(2 / 3)
    assert metrics.f1("无关", "保修") == 0.0
    five = ASKED.model_copy(update={"facts": (("5 天",),)})
    assert metrics.facts_present(five, "15 天") == [False]
    assert metrics.facts_present(five, "共5天") == [True]
