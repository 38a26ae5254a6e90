"""Replies that are right but oddly written are read; wrong ones are errors; data never becomes layout."""

import inspect
import json
from typing import Any

import dspy
import pytest
from adapter_replies import ROUTE, parse
from dspy.utils.exceptions import AdapterParseError
from scripted_lm import Call, scripted_lm

from programs.adapter import FieldAdapter, constrained_schema
from programs.lm import RoleLMs, ask
from programs.settings import load_settings
from signatures.answering import AnswerFromPassages
from signatures.judging import JudgeGrounding
from signatures.rewriting import DecomposeQuestion
from signatures.routing import RouteQuestion


def route(**changes: Any) -> dict[str, Any]:
    return parse(RouteQuestion, {**ROUTE, **changes})


# -- A1: wrapped replies ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        ROUTE,
        {"json_input": {"decision": ROUTE}},
        {"json": ROUTE},
        {"decision": ROUTE},
        {"type": "function", "name": "route", "parameters": {"decision": ROUTE}},
        {"json": json.dumps(ROUTE, ensure_ascii=False)},
        {"anything": ROUTE},
        [ROUTE],
        f"```json\n{json.dumps(ROUTE, ensure_ascii=False)}\n```",
        f"好的，结果如下：\n{json.dumps(ROUTE, ensure_ascii=False)}\n希望有帮助。",
    ],
)
def test_a_wrapped_reply_gives_the_same_fields(reply: Any) -> None:
    assert parse(RouteQuestion, reply) == ROUTE


def test_an_answer_that_is_called_like_a_wrapper_is_not_unwrapped_away() -> None:
    assert parse(AnswerFromPassages, {"answer": '{"ok": 1}'}) == {"answer": '{"ok": 1}'}


@pytest.mark.parametrize(
    "reply",
    [
        "我觉得是查询类",
        "嗯……",
        "{}",
        "[]",
        "null",
        '"FACT_LOOKUP"',
        "{" * 500,
        "[" * 5000,
        '{"a":' * 900 + "1" + "}" * 900,
    ],
)
def test_a_reply_without_the_fields_is_a_parse_error(reply: str) -> None:
    with pytest.raises(AdapterParseError):
        parse(RouteQuestion, reply)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(AdapterParseError, match="'confidence' is missing"):
        parse(RouteQuestion, {name: value for name, value in ROUTE.items() if name != "confidence"})


# -- A2: spellings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "intent", [" FACT_LOOKUP ", "fact_lookup", '"FACT_LOOKUP"', "「FACT_LOOKUP」"[1:-1], "ＦＡＣＴ_LOOKUP。"]
)
def test_an_enum_is_read_without_regard_to_case_quotes_width_and_full_stop(intent: str) -> None:
    assert route(intent=intent)["intent"] == "FACT_LOOKUP"


@pytest.mark.parametrize(
    ("confidence", "read"),
    [("95%", 95), ("９５％", 95), (95.0, 95), (0.95, 95), ("0.95", 95), (" 95 ", 95), (0, 0), (100, 100)],
)
def test_a_percentage_is_read_in_its_usual_spellings(confidence: Any, read: int) -> None:
    assert route(confidence=confidence)["confidence"] == read


@pytest.mark.parametrize("confidence", ["高", "", None, 101, -1, "95.5", 1e99, "NaN", "Infinity", [95], "0.5%"])
def test_a_confidence_that_could_mean_anything_is_an_error_and_no_guess(confidence: Any) -> None:
    with pytest.raises(AdapterParseError, match="confidence"):
        route(confidence=confidence)


def test_json_with_a_bare_nan_is_an_error() -> None:
    with pytest.raises(AdapterParseError, match="confidence"):
        parse(RouteQuestion, json.dumps({**ROUTE, "confidence": float("nan")}))


@pytest.mark.parametrize("intent", ["事实", "FACT", "FACT_LOOKUP or HOW_TO", "", None, 3])
def test_an_unknown_label_is_an_error(intent: Any) -> None:
    with pytest.raises(AdapterParseError, match="intent"):
        route(intent=intent)


@pytest.mark.parametrize(
    "verdict", ["8", "80%", "0.8/1", "nan", "", "有5条理由，打0.9分", "1e99", "是的", "不是", "是否"]
)
def test_a_verdict_that_is_no_label_is_an_error(verdict: str) -> None:
    with pytest.raises(AdapterParseError, match="verdict"):
        parse(JudgeGrounding, {"verdict": verdict, "reason": ""})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, []),
        ("1. 哪个型号？\n2. 哪一年买的？", ["哪个型号？", "哪一年买的？"]),
        ("- 哪个型号？\n- 哪一年买的？\n", ["哪个型号？", "哪一年买的？"]),
        (["1）哪个型号？", "二、哪一年买的？"], ["哪个型号？", "哪一年买的？"]),
    ],
)
def test_a_list_is_read_from_numbered_text_and_null(given: Any, read: list[str]) -> None:
    assert route(clarification_questions=given)["clarification_questions"] == read


def test_a_version_number_at_the_start_of_a_list_item_is_no_list_mark() -> None:
    parts = ["3.2 版的管理端口是多少？", "4.0 版的管理端口是多少？", "10:30 之后能打卡吗？", "-5 度能用吗？"]
    assert parse(DecomposeQuestion, {"parts": parts})["parts"] == parts


def test_null_for_an_answer_is_no_answer() -> None:
    assert parse(AnswerFromPassages, {"answer": None}) == {"answer": ""}


# -- constraints -----------------------------------------------------------------------------


class Constrained(dspy.Signature):
    """测试。"""

    question: str = dspy.InputField()
    number: int = dspy.OutputField(ge=1, le=5)
    share: float = dspy.OutputField(gt=0, lt=1)
    word: str = dspy.OutputField(min_length=2, max_length=4)
    code: str = dspy.OutputField(pattern="^[a-z]+$")
    items: list[str] = dspy.OutputField(min_length=1, max_length=2)


GOOD = {"number": 3, "share": 0.5, "word": "abc", "code": "xyz", "items": ["a"]}


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": 6},
        {"share": 0},
        {"share": 1.0},
        {"word": "a"},
        {"word": "abcde"},
        {"code": "X1"},
        {"items": []},
    ],
)
def test_a_constraint_that_the_server_did_not_enforce_is_enforced_here(change: dict[str, Any]) -> None:
    assert parse(Constrained, GOOD) == GOOD
    with pytest.raises(AdapterParseError, match=next(iter(change))):
        parse(Constrained, {**GOOD, **change})


def test_more_items_than_asked_for_are_cut_as_a_server_with_schema_would_have_done() -> None:
    assert parse(Constrained, {**GOOD, "items": ["a", "b", "c"]})["items"] == ["a", "b"]


def test_a_long_explanation_is_cut_and_does_not_cost_the_decision() -> None:
    reasoning = "The user asks for a fact about the return policy of the shop, in English."
    assert route(reasoning=reasoning)["reasoning"] == reasoning[:40]
    assert parse(JudgeGrounding, {"verdict": "否", "reason": reasoning})["verdict"] == "否"


def test_the_schema_that_is_sent_holds_every_constraint() -> None:
    schema = constrained_schema(
        {"properties": {n: {} for n in GOOD} | {"items": {"type": "array"}}}, Constrained.output_fields
    )
    properties = schema["properties"]
    assert properties["number"] == {"minimum": 1, "maximum": 5}
    assert properties["share"] == {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
    assert properties["word"] == {"minLength": 2, "maxLength": 4}
    assert properties["code"] == {"pattern": "^[a-z]+$"}
    assert properties["items"] == {"type": "array", "minItems": 1, "maxItems": 2}


async def sent(script: Any, signature: Any, **inputs: Any) -> Call:
    with scripted_lm(script) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        await ask(dspy.Predict(signature), lms["generator"], role="generator", **inputs)
        return lm.calls[0]


async def test_the_request_carries_the_schema_with_constraints() -> None:
    call = await sent(lambda _: GOOD, Constrained, question="问")
    [format_] = [call.body["response_format"]]
    assert format_["type"] == "json_schema"
    assert format_["json_schema"]["strict"] is True
    schema = format_["json_schema"]["schema"]
    assert schema["properties"]["number"]["maximum"] == 5
    assert schema["required"] == list(GOOD)
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(GOOD), "the order of the fields is the order of thought"


def test_the_private_hook_of_dspy_is_still_there() -> None:
    """`_prepare_response_format` is private; without it the schema would silently lose its constraints."""
    hook = dspy.JSONAdapter._prepare_response_format
    assert list(inspect.signature(hook).parameters) == ["self", "lm", "lm_kwargs", "signature"]
    for method in (dspy.JSONAdapter.__call__, dspy.JSONAdapter.acall):
        assert "_prepare_response_format" in inspect.unwrap(method).__code__.co_names


def test_streaming_finds_the_adapter_by_its_class_name() -> None:
    assert type(FieldAdapter()).__name__ == "JSONAdapter"
