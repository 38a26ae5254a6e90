"""Elasticsearch stores on a real node keep the promises of `base.py`, and know what an index was made with."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conformance import (
    DIMENSION,
    DenseConformance,
    K,
    TextConformance,
    assert_store_error,
    ids_of,
    row,
    unit,
    vector_of,
)
from elastic_bench import RUN, dense, fill, indexes, server_url, smartcn, text

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.elastic import TOKENS, ElasticDenseStore, ElasticIndex, ElasticTextStore

pytestmark = pytest.mark.server

Make = Callable[[], Any]


@pytest.fixture
def url(pytestconfig: pytest.Config) -> str:
    return server_url(pytestconfig)


@pytest.fixture
def opening() -> Iterator[Callable[[Make], Make]]:
    """Makes a function that opens a store: its data is empty now, and all are closed in the end."""
    opened: list[Any] = []

    def wrap(make: Make) -> Make:
        def open_it() -> Any:
            opened.append(make())
            return opened[-1]

        sweeper = open_it()
        sweeper.delete(sweeper.ids())  # quicker than a new index for each test
        sweeper.flush()
        return open_it

    yield wrap
    for store in opened:
        store.close()


class TestElasticTokensConformance(TextConformance):
    @pytest.fixture
    def open_store(self, url: str, opening: Callable[[Make], Make]) -> Make:
        return opening(lambda: text(url, "tokens"))


class TestElasticSmartcnConformance(TextConformance):
    @pytest.fixture
    def open_store(self, url: str, opening: Callable[[Make], Make]) -> Make:
        return opening(lambda: smartcn(url, "smartcn"))


class TestElasticDenseConformance(DenseConformance):
    @pytest.fixture
    def open_store(self, url: str, opening: Callable[[Make], Make]) -> Make:
        return opening(lambda: dense(url, "conformance"))

    def test_scores_are_cosines_and_fall_strictly(self, store: Any) -> None:
        # As in the suite, but with a flush first: only then does a server promise to find a row.
        rows = [row(name, name) for name in ("same", "near", "orthogonal", "opposite")]
        store.upsert(rows, np.stack([unit(1, 0), unit(1, 0.5), unit(0, 1), unit(-1, 0)]))
        store.flush()
        matches = store.search(unit(1, 0), top_k=10)
        assert ids_of(matches) == ["same", "near", "orthogonal", "opposite"]
        assert [m.score for m in matches] == pytest.approx([1.0, 0.894427, 0.0, -1.0], abs=1e-5)


# Analyzers.


def test_analyzers_that_are_missing_or_find_nothing_are_passed_over(url: str, caplog: Any) -> None:
    store = text(url, "passed", analyzers=("no_such_tokenizer", "whitespace", TOKENS))
    with caplog.at_level(logging.WARNING):
        assert store.self_test() == TOKENS
    assert len(store.notes) == 2
    assert "no_such_tokenizer" in store.notes[0]
    assert "退货" in store.notes[1]  # `whitespace` makes one word from a sentence
    assert "no_such_tokenizer" in caplog.text
    fill(store, d1=K["d1"][0])
    assert store.analyzer == TOKENS
    assert ids_of(store.search("退货运费谁付", top_k=3)) == ["d1"]
    store.close()


def test_where_no_analyzer_works_nothing_is_made(url: str) -> None:
    store = text(url, "none", analyzers=("no_such_tokenizer",))
    with pytest.raises(StoreMismatch) as caught:
        fill(store, a="退货")
    assert_store_error(caught.value, "no_such_tokenizer", TOKENS)
    assert store.ids() == set()
    assert indexes(store) == []
    store.close()


def test_an_index_of_another_analyzer_is_refused_and_clear_makes_it_anew(url: str) -> None:
    first, other = text(url, "other"), smartcn(url, "other")
    fill(first, a="退货")
    for call in (other.ids, other.count, lambda: other.search("退货", top_k=1), lambda: fill(other, b="退货")):
        with pytest.raises(StoreMismatch) as caught:
            call()
        assert_store_error(caught.value, "'tokens'", "'smartcn'", "--rebuild")
    assert first.ids() == {"a"}
    other.clear()
    fill(other, b="退货")
    # A process that has opened the old index must not search the new one with other words, and find nothing.
    with pytest.raises(StoreMismatch):
        first.search("退货", top_k=1)
    with pytest.raises(StoreMismatch):
        fill(first, c="退货")
    both = text(url, "other", analyzers=(TOKENS, "smartcn"))
    assert both.analyzer == "smartcn"
    assert both.self_test() == "smartcn"
    assert ids_of(both.search("退货", top_k=3)) == ["b"]
    for store in (first, other, both):
        store.close()


# What an index was made with.


def test_an_index_of_another_embedder_is_refused(url: str) -> None:
    first = dense(url, "embedder")
    first.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    for other in (dense(url, "embedder", embedder="another"), dense(url, "embedder", dimension=8)):
        with pytest.raises(StoreMismatch) as caught:
            other.count()
        assert_store_error(caught.value, "test-embedder" if other._dimension == DIMENSION else "'8'")
        other.close()
    first.close()


def test_an_index_that_something_else_made_is_reported(url: str) -> None:
    store = text(url, "foreign")
    client, name = store._client, store._alias.name
    client.index(index=name, document={"category": "公开"})  # the server guesses the fields
    with pytest.raises(StoreMismatch) as caught:
        store.search("退货", top_k=1, category="公开")
    assert_store_error(caught.value, name, "STORE_PREFIX")
    client.indices.delete(index=name)
    client.indices.create(index=f"{name}-000001", aliases={name: {}})
    client.index(index=name, document={"category": "公开"})
    with pytest.raises(StoreMismatch) as caught:
        store.search("退货", top_k=1, category="公开")
    assert_store_error(caught.value, "'category': text, here keyword", "unknown fields", "--rebuild")
    store.clear()
    fill(store, a="退货")
    assert ids_of(store.search("退货", top_k=1, category="公开")) == ["a"]
    store.close()


def test_an_index_that_was_removed_is_an_outage_and_no_empty_result(url: str) -> None:
    store = text(url, "removed")
    fill(store, a="退货")
    store._client.indices.delete(index=indexes(store)[0])
    for call in (lambda: store.search("退货", top_k=1), store.ids, store.count, lambda: fill(store, b="x")):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert_store_error(caught.value, "removed")
    store.clear()
    fill(store, b="退货")
    assert store.ids() == {"b"}
    store.close()


# One connection.


def test_two_stores_on_one_connection(url: str) -> None:
    index = ElasticIndex(url, prefix=f"{RUN}_both")
    words, vectors = ElasticTextStore(index), ElasticDenseStore(index, dimension=DIMENSION, embedder="e")
    fill(words, a="退货")
    vectors.upsert([row("b", "运费")], np.stack([vector_of("运费")]))
    vectors.flush()
    words.close()
    words.close()
    assert vectors.ids() == {"b"}  # closing the first does not take the connection away
    vectors.close()


@pytest.mark.parametrize("category", [["公开"], {"term": {"kind": "passage"}}, 1])
def test_a_category_that_is_no_string_is_refused(url: str, category: Any) -> None:
    store = text(url, "types")
    fill(store, a="退货")
    with pytest.raises(TypeError):
        store.search("退货", top_k=1, category=category)
    store.close()
