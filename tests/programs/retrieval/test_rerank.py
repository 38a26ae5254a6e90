"""Scores of a second look are between 0 and 1 whatever the model gives, and a broken model is a typed error."""

import math
from typing import Any

import numpy as np
import pytest

from programs.errors import AdaptiveRAGError, MissingPackageError, StoreError, StoreMismatch
from programs.retrieval.rerank import CrossEncoderReranker, unit_scores
from signatures.records import Hit, Passage


def hits(count: int) -> list[Hit]:
    passages = [Passage(id=f"p{n}", document_id="d", title="标题", text=f"段落 {n}") for n in range(count)]
    return [Hit(passage=passage, score=0.5, routes=("dense",), raw={"dense": 0.8}) for passage in passages]


class Encoder:
    """Gives these numbers, in order; what a `CrossEncoder` looks like from here."""

    def __init__(self, *numbers: float, shape: tuple[int, ...] | None = None) -> None:
        self.numbers = list(numbers)
        self.shape = shape
        self.pairs: list[list[tuple[str, str]]] = []

    def predict(self, pairs: list[tuple[str, str]], activation_fn: Any) -> Any:
        self.pairs.append(pairs)
        values = np.array(self.numbers[: len(pairs)], dtype=np.float32)
        del self.numbers[: len(pairs)]
        return activation_fn(values.reshape(self.shape) if self.shape else values)


def rerank(encoder: Any, count: int) -> list[Hit]:
    return CrossEncoderReranker("model", encoder).rerank("问题", hits(count))


def test_logits_become_scores_and_the_order_is_that_of_the_raw_numbers() -> None:
    """E5."""
    found = rerank(Encoder(-8, -0.1, 6, 9, 9.5), 5)
    assert [hit.passage.id for hit in found] == ["p4", "p3", "p2", "p1", "p0"]
    assert [hit.score >= 0.5 for hit in found] == [True, True, True, False, False]
    assert found[0].raw == {"dense": 0.8, "rerank": 9.5}
    assert all(0 <= hit.score <= 1 for hit in found)


def test_probabilities_are_not_squashed_again() -> None:
    assert [hit.score for hit in rerank(Encoder(0.2, 0.7), 2)] == pytest.approx([0.7, 0.2])


def test_scores_that_saturate_keep_their_order() -> None:
    found = rerank(Encoder(40, 41, 42), 3)
    assert [hit.score for hit in found] == [1.0, 1.0, 1.0]
    assert [hit.passage.id for hit in found] == ["p2", "p1", "p0"]


@pytest.mark.parametrize("raw", [[-1000.0], [1000.0], [-1e308, 1e308]])
def test_extreme_logits_do_not_overflow(raw: list[float]) -> None:
    assert all(0.0 <= score <= 1.0 and math.isfinite(score) for score in unit_scores(raw))


def test_a_model_that_once_gave_logits_gives_logits() -> None:
    reranker = CrossEncoderReranker("model", Encoder(-3, 4, 0.3))
    reranker.rerank("问题", hits(2))
    [hit] = reranker.rerank("问题", hits(1))
    assert hit.score == pytest.approx(1 / (1 + math.exp(-0.3)))


def test_ties_are_ordered_by_id() -> None:
    assert [hit.passage.id for hit in rerank(Encoder(0.5, 0.5, 0.5), 3)] == ["p0", "p1", "p2"]


def test_the_model_reads_the_heading_too() -> None:
    encoder = Encoder(0.5)
    rerank(encoder, 1)
    assert encoder.pairs == [[("问题", "标题\n段落 0")]]


def test_a_column_of_numbers_is_read_too() -> None:
    assert len(rerank(Encoder(0.1, 0.2, shape=(2, 1)), 2)) == 2


def test_no_hits_are_no_question() -> None:
    assert rerank(Encoder(), 0) == []


class OneAtATime(Encoder):
    """A decoder model without a padding token (E6)."""

    def predict(self, pairs: list[tuple[str, str]], activation_fn: Any) -> Any:
        if len(pairs) > 1:
            raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")
        return super().predict(pairs, activation_fn)


def test_a_model_that_takes_one_pair_at_a_time_is_given_one_at_a_time() -> None:
    encoder = OneAtATime(0.1, 0.9, 0.5)
    assert [hit.passage.id for hit in rerank(encoder, 3)] == ["p1", "p2", "p0"]
    assert [len(pairs) for pairs in encoder.pairs] == [1, 1, 1]


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), ValueError("x"), IndexError("index out of range")])
@pytest.mark.parametrize("count", [1, 3])
def test_a_model_that_fails_is_an_error_that_the_search_can_live_with(fault: Exception, count: int) -> None:
    class Broken(Encoder):
        def predict(self, pairs: list[tuple[str, str]], activation_fn: Any) -> Any:
            raise fault

    with pytest.raises(StoreError) as caught:
        rerank(Broken(), count)
    assert "model" in caught.value.message


@pytest.mark.parametrize("encoder", [Encoder(math.nan), Encoder(math.inf), Encoder(0.1, 0.2, 0.3, shape=(1, -1))])
def test_numbers_that_are_no_score_are_an_error(encoder: Encoder) -> None:
    class Fixed:
        def predict(self, pairs: Any, activation_fn: Any) -> Any:
            return activation_fn(np.array(encoder.numbers).reshape(1, -1))

    with pytest.raises(StoreMismatch):
        rerank(Fixed(), 1)


def test_a_model_that_is_not_there_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AdaptiveRAGError) as caught:
        CrossEncoderReranker(str(tmp_path / "nowhere")).rerank("问题", hits(1))
    assert caught.value.hint
    if isinstance(caught.value, MissingPackageError):
        assert "pip install" in caught.value.hint
