"""Probabilities are read at the value of the field, and nowhere else."""

import pytest

from programs.logprobs import reply_tokens, value_tokens


def tokens(*pieces: str) -> list[dict[str, object]]:
    return [{"token": piece, "logprob": -0.1, "top_logprobs": []} for piece in pieces]


def text(found: list[object]) -> str:
    return "".join(token["token"] for token in found)  # type: ignore[index]


@pytest.mark.parametrize(
    "pieces",
    [
        ('{"', "verdict", '":', ' "', "是", '", "', "reason", '": "', "不是", '"}'),
        ('{"verdict": "', "是", '", "reason": "', "是", '"}'),
        ('{"verdict":', ' "是', '", "reason": "是"}'),
        ('{"verdict":', '"', "是", '"', ', "reason": "是"}'),
        ('{"reason": "', "是", "的", '", "verdict": "', "是", '"}'),
        ("{\n", '  "verdict"', " : ", '"', "是", '"\n}'),
    ],
)
def test_the_value_is_found_however_the_reply_is_cut_into_tokens(pieces: tuple[str, ...]) -> None:
    found = value_tokens({"content": tokens(*pieces)}, "verdict")
    assert text(found[:1]).strip(' "') == "是"
    assert "reason" not in text(found[:-1]), "the last token may hold more than the closing quote"


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"content": None}, {"content": []}, {"content": tokens('{"other": "是"}')}]
)
def test_no_place_gives_no_tokens(logprobs: dict[str, object] | None) -> None:
    assert value_tokens(logprobs, "verdict") == []


def test_a_thought_is_left_out_also_when_its_tag_is_cut_in_pieces() -> None:
    pieces = ("<th", "ink>", '{"verdict": "否"}', "</", "think", ">\n\n", '{"verdict": "', "是", '"}')
    assert text(reply_tokens(tokens(*pieces), '{"verdict": "是"}')) == '{"verdict": "是"}'


def test_tokens_that_do_not_spell_the_text_are_cut_at_the_thought() -> None:
    pieces = ("<think>", "否", "</think>", '{"verdict": "', "\ufffd", "\ufffd", '"}')
    assert text(reply_tokens(tokens(*pieces), '{"verdict": "是"}')) == '{"verdict": "\ufffd\ufffd"}'
    assert text(reply_tokens(tokens("a", "b"), "x")) == "ab"
