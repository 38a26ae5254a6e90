"""Thoughts are cut, cuts and emptiness are named: through the function, and through a whole request."""

import json
from typing import Any

import dspy
import pytest
from scripted_lm import Call, Reply, ScriptedLM, scripted_lm

from programs.errors import LanguageModelError
from programs.lm import RoleLMs, ask
from programs.replies import ReplyEmpty, ReplyTruncated, last_json_object, reply_text, strip_thoughts
from programs.settings import load_settings
from signatures.answering import AnswerFromPassages
from signatures.routing import RouteQuestion

FINAL = json.dumps(
    {
        "intent": "FACT_LOOKUP",
        "strategy": "fast_retrieval",
        "confidence": 95,
        "reasoning": "问一个事实",
        "clarification_questions": [],
    },
    ensure_ascii=False,
)
DRAFT = '{"intent": "CHIT_CHAT"}'


# -- A3: thoughts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (f"用户也许在闲聊 {DRAFT} 不对。</think>{FINAL}", FINAL),
        (f"<think>{DRAFT}</think>{FINAL}", FINAL),
        (f"<think>a</think>{DRAFT}<think>b</think>\n\n{FINAL}", FINAL),
        ("<think>没写完", ""),
        (f"<think>{DRAFT}", ""),
        (f"<think>a</think><think>{FINAL}", ""),
        ("没有思考。", "没有思考。"),
        ("</think>", ""),
        ("", ""),
    ],
)
def test_only_what_stands_behind_the_last_thought_counts(text: str, rest: str) -> None:
    assert strip_thoughts(text) == rest


async def routed(script: Any) -> tuple[Any, ScriptedLM]:
    with scripted_lm(script) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        reply = await ask(dspy.Predict(RouteQuestion), lms["router"], role="router", history="", question="退货")
        return reply, lm


async def failed(script: Any) -> tuple[LanguageModelError, ScriptedLM]:
    with scripted_lm(script) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        with pytest.raises(LanguageModelError) as caught:
            await ask(dspy.Predict(RouteQuestion), lms["router"], role="router", history="", question="退货")
        return caught.value, lm


@pytest.mark.parametrize("thought", [f"用户也许在闲聊 {DRAFT} 不对。</think>", f"<think>{DRAFT}</think>"])
async def test_a_draft_inside_a_thought_is_not_the_decision(thought: str) -> None:
    reply, lm = await routed(lambda _: thought + FINAL)
    assert reply.intent == "FACT_LOOKUP"
    assert len(lm.calls) == 1


async def test_an_unfinished_thought_is_asked_again_without_thinking_and_then_given_up() -> None:
    error, lm = await failed(lambda _: "<think>没写完")
    assert error.kind == "empty"
    assert "没写完" not in error.message
    assert "thinking=off" in error.hint
    assert [call.body.get("enable_thinking") for call in lm.calls] == [None, False]


async def test_the_log_probabilities_of_a_thought_are_not_those_of_the_reply() -> None:
    """Drafts in a thought hold labels too, and their probabilities came first."""
    thought: list[tuple[str, dict[str, float]]] = [
        ("<think>", {}),
        ("否", {"是": 0.1, "否": 0.9}),
        ("</", {}),
        ("think>", {}),
    ]
    said: list[tuple[str, dict[str, float]]] = [
        ('{"verdict": "', {}),
        ("是", {"是": 0.8, "否": 0.2}),
        ('", "reason": ""}', {}),
    ]
    text = "".join(token for token, _ in thought + said)
    with scripted_lm(lambda _: Reply(text, logprobs=thought + said)) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        predict = dspy.Predict("question -> verdict, reason")
        reply = await ask(
            predict, lms["judge"], role="judge", question="问", config={"logprobs": True, "top_logprobs": 5}
        )
    assert "".join(token["token"] for token in reply.logprobs["content"]) == "".join(token for token, _ in said)


# -- A4: text only in the reasoning ----------------------------------------------------------


async def test_a_whole_reply_in_the_reasoning_field_is_accepted() -> None:
    reply, lm = await routed(lambda _: Reply(None, reasoning=f"先想想…… {DRAFT} 不对，所以\n{FINAL}"))
    assert reply.intent == "FACT_LOOKUP"
    assert len(lm.calls) == 1


async def test_mere_reasoning_is_never_shown_and_costs_two_calls_at_most() -> None:
    error, lm = await failed(lambda _: Reply(None, reasoning="先想想…答案大概是七天"))
    assert error.kind == "empty"
    assert "七天" not in error.message
    assert len(lm.calls) == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('想 {"a": 1} 不 {"b": {"c": 2}}', '{"b": {"c": 2}}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('{"a": 1} 后面还有话', ""),
        ("没有", ""),
        ("{坏的}", ""),
        ('{ {"a": 1}', '{"a": 1}'),
    ],
)
def test_the_object_that_ends_a_text_is_found(text: str, found: str) -> None:
    assert last_json_object(text) == found


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": None}}]},
        {"choices": [{"message": {"content": ""}}]},
        {"choices": [{"message": {"content": "   \n\n"}}]},
        {"choices": [{"message": {"content": 5}}]},
    ],
)
def test_a_body_without_text_is_an_empty_reply(body: dict[str, Any]) -> None:
    with pytest.raises(ReplyEmpty):
        reply_text(body)


def test_a_cut_reply_is_named_even_when_it_looks_whole() -> None:
    with pytest.raises(ReplyTruncated):
        reply_text({"choices": [{"finish_reason": "length", "message": {"content": FINAL}}]})


# -- A6: cut at the token limit --------------------------------------------------------------


async def answered(script: Any) -> tuple[Any, ScriptedLM]:
    with scripted_lm(script) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        reply = await ask(
            dspy.Predict(AnswerFromPassages),
            lms["generator"],
            role="generator",
            passages="资料",
            question="退货要几天",
            answer_language="中文",
        )
        return reply, lm


async def test_a_cut_reply_is_asked_for_once_more_with_twice_the_room() -> None:
    def script(call: Call) -> Reply:
        short = call.body["max_tokens"] <= 768
        return Reply('{"answer": "根据规定，退货期是', finish="length") if short else Reply('{"answer": "七天"}')

    reply, lm = await answered(script)
    assert reply.answer == "七天"
    assert [call.body["max_tokens"] for call in lm.calls] == [768, 1536]


async def test_a_reply_that_is_cut_twice_is_no_answer() -> None:
    with pytest.raises(LanguageModelError) as caught:
        await answered(lambda _: Reply('{"answer": "根据规定，退货期是七天。"}', finish="length"))
    assert caught.value.kind == "truncated"


async def test_a_cut_reply_is_not_kept_for_the_next_question() -> None:
    first = iter([True])
    with scripted_lm(
        lambda _: Reply('{"answer": "半句', finish="length") if next(first, False) else Reply('{"answer": "七天"}')
    ) as lm:
        lms = RoleLMs(load_settings(lm=lm.line))
        for _ in range(2):
            reply = await ask(
                dspy.Predict(AnswerFromPassages),
                lms["generator"],
                role="generator",
                passages="资料",
                question="退货要几天",
                answer_language="中文",
            )
            assert reply.answer == "七天"
    assert len(lm.calls) == 3


# -- A7: JSON mode ---------------------------------------------------------------------------


async def test_an_endpoint_that_wants_the_word_json_gets_it() -> None:
    def script(call: Call) -> Reply:
        if "json" not in call.text.lower():
            return Reply(status=400, error={"message": "'messages' must contain the word 'json'"})
        return Reply(FINAL)

    reply, lm = await routed(script)
    assert reply.intent == "FACT_LOOKUP"
    assert len(lm.calls) == 1


async def test_a_blank_reply_is_asked_for_once_more() -> None:
    texts = iter(["   \n\n", FINAL])
    reply, lm = await routed(lambda _: next(texts))
    assert reply.intent == "FACT_LOOKUP"
    assert len(lm.calls) == 2


# -- A8: markers of DSPy's own layout --------------------------------------------------------


async def test_markers_never_leak_into_an_answer() -> None:
    with pytest.raises(LanguageModelError) as caught:
        await answered(lambda _: "  [[ ## answer ## ]] 七天\n  [[ ## completed ## ]]")
    assert caught.value.kind == "parse"
