"""Records refuse what must not cross a seam, and come back as they were written."""

from typing import Any

import pytest
from pydantic import ValidationError

from signatures.records import Answer, Hit, HopTrace, Passage, RouteDecision, Usage, Verdict

PASSAGE = Passage(id="a#1", document_id="手册/a.md", title="标题", section="一 > 二", text='文 {x} \\ " 😀')
DECISION = RouteDecision(intent="HOW_TO", confidence=0.7, strategy="standard_retrieval")


def answer(**fields: Any) -> Answer:
    base = {
        "question": "问",
        "answer": "答",
        "status": "answered",
        "stop_reason": "judges_passed",
        "decision": DECISION,
        "strategy": "standard_retrieval",
    }
    return Answer(**{**base, **fields})


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.01, 1.01, 8, "8", None])
def test_a_hit_has_a_finite_score_between_zero_and_one(score: Any) -> None:
    with pytest.raises(ValidationError):
        Hit(passage=PASSAGE, score=score)


@pytest.mark.parametrize("confidence", [float("nan"), -0.1, 1.5, 95, None])
def test_a_confidence_is_a_probability(confidence: Any) -> None:
    with pytest.raises(ValidationError):
        RouteDecision(intent="HOW_TO", confidence=confidence, strategy="fallback")


@pytest.mark.parametrize(
    "fields", [{"intent": "FACT"}, {"strategy": "guess"}, {"source": "oracle"}, {"error_kind": "oops"}, {"extra": 1}]
)
def test_labels_are_a_closed_set_and_unknown_keys_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RouteDecision(**{"intent": "HOW_TO", "confidence": 0.5, "strategy": "fallback", **fields})


def test_an_unknown_verdict_never_passes_and_zero_is_not_unknown() -> None:
    with pytest.raises(ValidationError):
        Verdict(judge="utility", score=None, passed=True)
    assert Verdict(judge="utility", score=None, passed=False).unknown
    assert not Verdict(judge="utility", score=0.0, passed=False).unknown


def test_records_are_immutable() -> None:
    with pytest.raises(ValidationError):
        PASSAGE.text = "x"  # type: ignore[misc]


def test_a_whole_answer_survives_json() -> None:
    hit = Hit(passage=PASSAGE, score=0.5, routes=("dense",), raw={"dense": 0.9})
    verdict = Verdict(judge="relevance", score=0.9, passed=True, passage_scores={"a#1": 0.9, "b": None})
    hop = HopTrace(hop=1, query="问", hits=(hit,), relevance=verdict, decision="finish", usage=Usage(lm_calls=3))
    whole = answer(trace=(hop,), passages=(PASSAGE,), best_hop=1)
    assert Answer.model_validate_json(whole.model_dump_json()) == whole


def test_headings_and_locations_say_where_a_passage_stands() -> None:
    assert PASSAGE.heading == "标题 > 一 > 二"
    assert Passage(id="a", document_id="a.md", title="标题", text="").heading == "标题"
    assert PASSAGE.location == "手册/a.md"
    code = Passage(id="c", document_id="sdk/c.py", text="", language="python", start_line=10, end_line=24)
    assert code.location == "sdk/c.py:10-24"
