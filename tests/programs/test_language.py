"""Whose language an answer has."""

import pytest

from programs import language
from signatures.vocabulary import STATUSES


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("退货要几天", "zh"),
        ("LanBox 4.0 的 OTA 怎么做", "zh"),
        ("API token 过期怎么办", "zh"),
        ("營收增長多少", "zh"),
        ("How many days do I have to return it?", "en"),
        ("refresh_access_token", "en"),
        ("What is 年假 policy for new employees?", "en"),
        ("LB-200 RS485 吗", "zh"),
        ("12345", "zh"),
        ("", "zh"),
        ("😀", "zh"),
    ],
)
def test_the_language_of_a_question(text: str, found: str) -> None:
    assert language.detect_language(text) == found


def test_every_sentence_exists_in_both_languages_with_the_same_places() -> None:
    zh, en = language._MESSAGES["zh"], language._MESSAGES["en"]
    assert set(zh) == set(en)
    for key in zh:
        for place in ("{length}", "{limit}", "{reason}"):
            assert (place in zh[key]) == (place in en[key]), key
        assert language.detect_language(zh[key]) == "zh"
        assert language.detect_language(en[key]) == "en"


def test_every_status_without_an_answer_has_its_sentence() -> None:
    assert set(STATUSES) - {"answered", "best_effort", "clarify"} <= set(language._MESSAGES["zh"])
