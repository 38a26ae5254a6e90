"""The quick search of Milvus Lite finds what the engine's own search finds, in every state of a file."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_lite.engine import collection

from programs.retrieval import milvus_lite_search
from programs.retrieval.base import Match, Row, Vector
from programs.retrieval.milvus import MilvusDenseStore
from signatures.records import Passage

DIMENSION = 32


def rows(numbers: range, category: str = "") -> list[Row]:
    return [
        Row(f"r{n:05}", "passage", str(n), Passage(id=f"r{n:05}", document_id="d", text=str(n), category=category))
        for n in numbers
    ]


def vectors(number: int, seed: int) -> Vector:
    made = np.random.default_rng(seed).normal(size=(number, DIMENSION))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


QUERIES = vectors(12, seed=99)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MilvusDenseStore]:
    opened = reopened(tmp_path)
    yield opened
    opened.close()


def reopened(folder: Path) -> MilvusDenseStore:
    return MilvusDenseStore(str(folder / "v.db"), collection="c", dimension=DIMENSION, embedder="e")


def found(store: MilvusDenseStore, top_k: int = 10, category: str | None = None) -> list[list[Match]]:
    return [store.search(query, top_k=top_k, category=category) for query in QUERIES]


def assert_as_the_engine(store: MilvusDenseStore, monkeypatch: pytest.MonkeyPatch) -> list[list[Match]]:
    """The same rows in the same order with the same scores, for several searches."""
    quick = collection.execute_search_with_index
    assert isinstance(quick, milvus_lite_search.QuickSearch)
    last: list[list[Match]] = []
    for options in ({"top_k": 1}, {"category": "b"}, {"category": "nowhere"}, {"top_k": 10}):
        ours = found(store, **options)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(collection, "execute_search_with_index", quick._engine)
            theirs = found(store, **options)  # type: ignore[arg-type]
        assert [[match.row_id for match in line] for line in ours] == [[m.row_id for m in line] for line in theirs]
        np.testing.assert_allclose(
            [match.score for line in ours for match in line],
            [match.score for line in theirs for match in line],
            atol=2e-6,
        )
        last = ours
    return last


def test_every_state_of_a_file_is_searched_as_the_engine_does(
    store: MilvusDenseStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.upsert(rows(range(600)), vectors(600, seed=1))
    assert_as_the_engine(store, monkeypatch)  # not flushed
    store.flush()
    first = assert_as_the_engine(store, monkeypatch)
    store.upsert(rows(range(300, 900), "b"), vectors(600, seed=2))  # half of them written again
    assert_as_the_engine(store, monkeypatch)
    store.flush()
    second = assert_as_the_engine(store, monkeypatch)
    assert first != second
    gone = {match.row_id for line in second for match in line[:3]}
    store.delete(gone)
    assert not gone & {match.row_id for line in assert_as_the_engine(store, monkeypatch) for match in line}
    store.flush()
    third = assert_as_the_engine(store, monkeypatch)
    assert not gone & {match.row_id for line in third for match in line}
    back = sorted(gone)[:1]
    store.upsert(rows(range(int(back[0][1:]), int(back[0][1:]) + 1)), QUERIES[:1])  # deleted, then written again
    store.flush()
    assert assert_as_the_engine(store, monkeypatch)[0][0].row_id == back[0]
    for seed in range(3, 9):  # enough parts that the engine puts them together
        store.upsert(rows(range(1000 * seed, 1000 * seed + 50)), vectors(50, seed))
        store.flush()
        assert_as_the_engine(store, monkeypatch)
    store.close()
    again = reopened(tmp_path)
    assert_as_the_engine(again, monkeypatch)
    again.clear()
    assert found(again) == [[]] * len(QUERIES)
    again.upsert(rows(range(600)), vectors(600, seed=7))  # the same file names and keys, other vectors
    again.flush()
    assert assert_as_the_engine(again, monkeypatch) != first
    again.close()


def test_searches_beside_a_writer_never_see_a_row_twice_or_an_old_one(store: MilvusDenseStore) -> None:
    store.upsert(rows(range(400)), vectors(400, seed=1))
    store.flush()
    stop = time.monotonic() + 3

    def write() -> None:
        seed = 2
        while time.monotonic() < stop:
            store.upsert(rows(range(400)), vectors(400, seed))
            store.delete(["r00007"])
            store.flush()
            seed += 1

    def read() -> None:
        while time.monotonic() < stop:
            for line in found(store):
                names = [match.row_id for match in line]
                assert len(set(names)) == len(names) == 10

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write), pool.submit(read), pool.submit(read)]:
            done.result()
    assert "r00007" not in {match.row_id for line in found(store, top_k=400) for match in line}


def test_a_search_of_many_rows_does_not_go_through_all_of_them(
    store: MilvusDenseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert(rows(range(5_000)), vectors(5_000, seed=1))
    store.flush()
    quick = collection.execute_search_with_index
    assert isinstance(quick, milvus_lite_search.QuickSearch)
    engine, handed = quick._engine, []

    def counting(**asked: Any) -> Any:
        handed.append(sum(part.num_rows for part in asked["segments"]))
        return engine(**asked)

    monkeypatch.setattr(quick, "_engine", counting)
    deadline = time.monotonic() + 30
    while not handed or (handed[-1] > 100 and time.monotonic() < deadline):  # the index is built behind
        assert len(store.search(QUERIES[0], top_k=10)) == 10
    assert handed[-1] <= 100


def test_another_version_of_the_engine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = object()
    monkeypatch.setattr(collection, "execute_search_with_index", engine)
    monkeypatch.setattr(milvus_lite_search, "version", lambda name: "3.2.3")
    assert not milvus_lite_search.install()
    assert collection.execute_search_with_index is engine
