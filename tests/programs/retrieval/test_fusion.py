"""Ranks are fused fairly: agreement wins, nothing is lost, nothing comes twice."""

import pytest

from programs.retrieval.base import Match
from programs.retrieval.fusion import RankedList, fuse, interleave
from signatures.records import Hit, Passage


def match(passage_id: str, score: float = 1.0, row: str = "", text: str = "") -> Match:
    return Match(row or passage_id, Passage(id=passage_id, document_id=passage_id, text=text or passage_id), score)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_a_passage_that_two_routes_find_comes_first_and_once() -> None:
    """E8."""
    hits = fuse(
        [
            RankedList("dense", [match("A", 0.9), match("C", 0.8)]),
            RankedList("text", [match("A", 7.0), match("B", 6.0)]),
        ]
    )
    assert ids(hits) == ["A", "B", "C"]
    assert hits[0].routes == ("dense", "text")
    assert hits[0].raw == {"dense": 0.9, "text": 7.0}
    assert hits[0].score == 1.0
    assert hits[1].routes == ("text",)


def test_agreement_beats_one_first_place() -> None:
    dense = RankedList("dense", [match("A", 0.9), match("B", 0.8)])
    text = RankedList("text", [match("C", 9.0), match("B", 8.0)])
    assert ids(fuse([dense, text]))[0] == "B"


def test_equal_texts_under_two_ids_stay_two_hits() -> None:
    hits = fuse([RankedList("dense", [match("A", text="同"), match("B", text="同")])])
    assert ids(hits) == ["A", "B"]


def test_several_rows_of_one_passage_count_once_with_the_best() -> None:
    questions = [match("A", 0.9, "A?1"), match("A", 0.8, "A?2"), match("B", 0.7, "B?1")]
    hits = fuse([RankedList("questions", questions)])
    assert ids(hits) == ["A", "B"]
    assert hits[0].raw == {"questions": 0.9}
    assert hits[1].score == pytest.approx(61 / 62), "rank 2, not 3"


def test_ties_are_ordered_by_id_whatever_the_order_of_the_lists() -> None:
    one, two = RankedList("dense", [match("B")]), RankedList("text", [match("A")])
    assert ids(fuse([one, two])) == ids(fuse([two, one])) == ["A", "B"]


def test_a_weight_moves_the_balance_and_zero_takes_a_route_out() -> None:
    def fused(weight: float) -> list[str]:
        return ids(fuse([RankedList("dense", [match("A")]), RankedList("text", [match("B")], weight)]))

    assert fused(2.0) == ["B", "A"]
    assert fused(0.5) == ["A", "B"]
    hits = fuse([RankedList("dense", [match("A")]), RankedList("text", [match("B")], 0.0)])
    assert [hit.score for hit in hits] == [1.0, 0.0]


def test_a_route_that_found_nothing_lowers_the_scores() -> None:
    assert fuse([RankedList("dense", [match("A")]), RankedList("text", [])])[0].score == 0.5


def test_scores_are_between_zero_and_one_and_fall() -> None:
    lists = [RankedList("dense", [match(f"p{n}", 1 - n / 100) for n in range(50)]) for _ in range(3)]
    scores = [hit.score for hit in fuse(lists)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1.0
    assert 0 < scores[-1] < 1


@pytest.mark.parametrize("lists", [[], [RankedList("dense", [])], [RankedList("dense", [match("A")], 0.0)]])
def test_nothing_to_fuse_is_no_error(lists: list[RankedList]) -> None:
    assert [hit.score for hit in fuse(lists)] in ([], [0.0])


# -- interleave ------------------------------------------------------------------------------


def hits_of(*names: str, score: float = 1.0) -> list[Hit]:
    return [Hit(passage=match(name).passage, score=score) for name in names]


def test_each_side_of_a_comparison_has_its_turn() -> None:
    strong, weak = hits_of("A1", "A2", "A3", score=1.0), hits_of("B1", score=0.1)
    assert ids(interleave([strong, weak])) == ["A1", "B1", "A2", "A3"]


def test_a_passage_of_both_sides_comes_once_at_its_best_place() -> None:
    assert ids(interleave([hits_of("X", "A"), hits_of("B", "X")])) == ["X", "B", "A"]


def test_interleaving_nothing_is_nothing() -> None:
    assert interleave([]) == []
    assert interleave([[], []]) == []
    assert ids(interleave([[], hits_of("A")])) == ["A"]
