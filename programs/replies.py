"""From an endpoint's reply to text that may be parsed: thoughts cut, cuts and emptiness named.

Thinking models put drafts into their thoughts; a draft that is parsed as the answer is a wrong
answer that looks right. Hence one place that cleans every reply, before anything reads it.
"""

import json
from collections.abc import Mapping
from typing import Any

import dspy

from programs.prices import Tokens

_OPEN, THOUGHT_END = "<think>", "</think>"


class ReplyTruncated(dspy.LMError):
    """The reply was cut at the token limit."""


class ReplyEmpty(dspy.LMError):
    """The reply has no text, or only an unfinished thought."""


def reported_tokens(body: Mapping[str, Any]) -> Tokens:
    """The usage record of a chat completion; zeros where there is none."""
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Tokens(
        prompt=int(usage.get("prompt_tokens") or 0),
        cached=int(details.get("cached_tokens") or 0),
        completion=int(usage.get("completion_tokens") or 0),
    )


def strip_thoughts(text: str) -> str:
    """Everything behind the last closing think tag; "" when a thought was left open.

    The opening tag is often missing, because chat templates write it into the prompt.
    """
    text = text.rpartition(THOUGHT_END)[2] if THOUGHT_END in text else text
    return "" if _OPEN in text else text.strip()


def reply_text(body: Mapping[str, Any]) -> str:
    """The text of a chat completion.

    Text that stands only in `reasoning_content` counts when it ends in a JSON object: some servers
    put the whole reply there. Other reasoning is never shown to anyone.

    Raises:
        ReplyTruncated: `finish_reason` is `length`.
        ReplyEmpty: There is no usable text.
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    if choice.get("finish_reason") == "length":
        raise ReplyTruncated("the reply was cut at the token limit")
    content = message.get("content")
    text = strip_thoughts(content) if isinstance(content, str) else ""
    if text:
        return text
    for name in ("reasoning_content", "reasoning"):
        reasoning = message.get(name)
        if isinstance(reasoning, str) and (found := last_json_object(reasoning)):
            return found
    raise ReplyEmpty("the reply has no text", code="empty")


def last_json_object(text: str) -> str:
    """The JSON object that ends `text` (apart from white space and a code fence), or ""."""
    stripped = text.rstrip().removesuffix("```").rstrip()
    if not stripped.endswith("}"):
        return ""
    decoder = json.JSONDecoder()
    start = stripped.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(stripped, start)
        except json.JSONDecodeError:
            start = stripped.find("{", start + 1)
            continue
        if end == len(stripped):
            return stripped[start:end]
        start = stripped.find("{", end)
    return ""
