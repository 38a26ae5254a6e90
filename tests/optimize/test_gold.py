"""Quotes lead to passages, and rankings are scored as in the books."""

import pytest

from data.loading import DataError, load_question_cases, load_rewrite_cases
from data.schema import Gold, Shown
from optimize.gold import GoldPassages, ndcg, recall, reciprocal_rank, sample_passages
from signatures.records import Passage

PASSAGES = GoldPassages(
    [
        Passage(id="a", document_id="d", title="年假", section="天数", text="满一年\n有 5 天"),
        Passage(id="b", document_id="d", title="年假", section="结转", text="最多结转 5 天"),
    ]
)


def test_a_quote_is_found_across_white_space_and_must_be_unique() -> None:
    assert PASSAGES.find(Gold(document_id="d", quote="满一年有 5 天")).id == "a"
    assert PASSAGES.find(Gold(document_id="d", quote="结转 5")).id == "b"
    for quote in ("5 天", "没有的话"):
        with pytest.raises(DataError, match="passages"):
            PASSAGES.find(Gold(document_id="d", quote=quote))
    with pytest.raises(DataError):
        PASSAGES.find(Gold(document_id="other", quote="结转"))


def test_a_passage_of_its_own_is_shown_as_it_is_written() -> None:
    shown = PASSAGES.shown(Shown(heading="电饭煲 > 保养", text="每周清洗。"))
    assert (shown.title, shown.section, shown.text) == ("电饭煲", "保养", "每周清洗。")


def test_every_gold_quote_of_the_labelled_questions_is_one_passage() -> None:
    known = sample_passages()
    for case in [*load_question_cases(), *load_rewrite_cases()]:
        for gold in case.gold:
            assert known.find(gold).id


def test_ranking_figures() -> None:
    ranked = ["x", "a", "y", "b"]
    assert recall(ranked, ["a", "b"], 2) == 0.5
    assert recall(ranked, ["a", "b"], 4) == 1.0
    assert recall(ranked, ["a", "zzz"], 2, either=True) == 1.0
    assert reciprocal_rank(ranked, ["b", "a"]) == 0.5
    assert reciprocal_rank(ranked, ["zzz"]) == 0.0
    assert ndcg(["a", "b"], ["a", "b"], 5) == 1.0
    assert ndcg(["x", "a"], ["a"], 5) == pytest.approx(0.6309, abs=1e-4)
