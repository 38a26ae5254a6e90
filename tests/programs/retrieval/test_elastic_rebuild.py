"""An Elasticsearch index is replaced while it is searched, and survives crashes of both sides."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conformance import assert_store_error, ids_of, row, vector_of
from elastic_bench import RUN, dense, fill, in_front_of, indexes, server_url, text
from index_bench import HashEmbedder, write
from servers import Reply, Request, forward, shared_elasticsearch

from programs.errors import StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval import indexing
from programs.retrieval.base import Vector
from programs.retrieval.catalog import Catalog
from programs.retrieval.elastic import ElasticIndex, ElasticTextStore
from programs.retrieval.indexing import Indexer

pytestmark = pytest.mark.server


@pytest.fixture
def url(pytestconfig: pytest.Config) -> str:
    return server_url(pytestconfig)


def test_searches_go_on_while_the_index_is_rebuilt(url: str) -> None:
    store, reader = text(url, "swap"), text(url, "swap")
    fill(store, **{f"d{number}": "退货" for number in range(20)})
    wrong: list[object] = []
    done = threading.Event()
    searched = 0

    def search() -> None:
        nonlocal searched
        while not done.is_set():
            try:
                found = len(reader.search("退货", top_k=50))
                if found not in (20, 21):
                    wrong.append(found)
            except (StoreUnavailable, StoreMismatch) as error:
                wrong.append(error)
            searched += 1

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for extra in (1, 0, 1):
        with store.rebuilding() as fresh:
            fresh.upsert([row(f"n{number}", "退货") for number in range(20 + extra)])
    done.set()
    for thread in threads:
        thread.join(timeout=10)
    assert wrong == []
    assert searched > 10
    assert reader.count() == 21
    assert len(indexes(store)) == 1
    store.close()
    reader.close()


def test_an_abandoned_rebuild_changes_nothing(url: str) -> None:
    store = text(url, "abandoned")
    fill(store, a="退货")
    with pytest.raises(ZeroDivisionError), store.rebuilding() as fresh:
        fill(fresh, b="退货")
        assert (fresh.ids(), store.ids()) == ({"b"}, {"a"})
        raise ZeroDivisionError
    assert store.ids() == {"a"}
    assert len(indexes(store)) == 1
    store.close()


def test_the_last_of_two_rebuilds_wins_and_what_a_crash_left_is_removed(url: str) -> None:
    store = text(url, "rivals")
    fill(store, a="退货")
    store._alias.make(store._design(), live=False)  # as a process that died in a rebuild leaves it
    with pytest.raises(StoreLocked) as caught, store.rebuilding() as older:
        fill(older, b="退货")
        with store.rebuilding() as newer:
            fill(newer, c="退货")
    assert_store_error(caught.value, "Another rebuild")
    assert store.ids() == {"c"}
    assert len(indexes(store)) == 1
    store.close()


def reindex(url: str, home: Path, docs: Path, action: str, die_after: int = 10_000) -> None:
    """An indexer on Elasticsearch alone, in this process; it is killed with the embedder's so many-th call."""

    class Mortal(HashEmbedder):
        def encode_document(self, texts: Sequence[str]) -> Vector:
            if len(self.batches) >= die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().encode_document(texts)

    indexing.BATCH_PASSAGES = 2
    catalog, words, vectors = Catalog(home / "c.sqlite"), text(url, "killed"), dense(url, "killed", "hash", 8)
    getattr(Indexer(catalog, vectors, words, Mortal()), action)([docs])
    for part in (catalog, words, vectors):
        part.close()


def test_an_index_whose_rebuild_was_killed_is_searched_and_the_next_one_heals_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BATCH_PASSAGES", 2)
    docs = write(tmp_path / "docs", {f"{number}.md": f"退货规定 {number}" for number in range(8)})
    reindex(url, tmp_path, docs, "index_paths")
    words, vectors = text(url, "killed"), dense(url, "killed", "hash", 8)
    before = words.ids()
    write(docs, {"0.md": "退货规定改了"})
    # Forked: the child has the names of this run. It makes no request before it has its own connection.
    child = multiprocessing.get_context("fork").Process(target=reindex, args=(url, tmp_path, docs, "rebuild", 2))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert words.ids() == vectors.ids() == before
    assert len(words.search("退货", top_k=20)) == 8
    assert len(indexes(words)) == 2
    reindex(url, tmp_path, docs, "rebuild")
    assert words.ids() == vectors.ids()
    assert words.ids() != before
    assert {m.passage.text for m in words.search("改了", top_k=20)} >= {"退货规定改了"}
    assert (len(indexes(words)), len(indexes(vectors))) == (1, 1)
    words.close()
    vectors.close()


def test_a_new_store_can_be_rebuilt_and_a_rebuilt_one_cleared(url: str) -> None:
    store = dense(url, "fresh")
    with store.rebuilding() as fresh:
        fresh.upsert([row("x", "x")], np.stack([vector_of("x")]))
        fresh.clear()
        fresh.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    assert store.ids() == {"a"}
    store.clear()
    assert store.ids() == set()
    store.close()


def test_two_that_make_the_index_at_once(url: str) -> None:
    stores = [text(url, "race") for _ in range(4)]
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait(timeout=10)
        fill(stores[number], **{f"r{number}": "退货"})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert stores[0].ids() == {"r0", "r1", "r2", "r3"}
    assert len(indexes(stores[0])) == 1
    for store in stores:
        store.close()


def test_a_swap_whose_answer_is_lost_is_no_loss(url: str) -> None:
    lost: list[Reply] = []

    def answer(request: Request) -> Reply | None:
        if "/_aliases" in request.path and not lost:
            lost.append(forward(url, request))
            return Reply(0)
        return None

    with in_front_of(url, answer) as server:
        store = text(server.url, "lost")
        fill(store, a="退货")
        with store.rebuilding() as fresh:
            fill(fresh, b="退货")
        assert store.ids() == {"b"}
        assert len(indexes(store)) == 1
        store.close()
    assert [reply.status for reply in lost] == [200]


def test_a_swap_of_unknown_end_never_removes_the_live_index(url: str) -> None:
    release = threading.Event()
    asked: list[int] = []

    def answer(request: Request) -> Reply | None:
        if "/_aliases" not in request.path:
            return None
        reply = forward(url, request)
        asked.append(reply.status)
        if len(asked) == 1:
            release.wait(5)
        return reply

    witness = text(url, "unknown")
    fill(witness, a="退货")
    with in_front_of(url, answer) as server:
        store = ElasticTextStore(ElasticIndex(server.url, prefix=f"{RUN}_unknown", write_timeout=1.0))
        with pytest.raises(StoreUnavailable) as caught, store.rebuilding() as fresh:
            fill(fresh, b="退货")
        release.set()
        store.close()
    assert_store_error(caught.value, "no answer in time", "1 s for writing")
    assert asked == [200, 404]  # done, but unknown; then giving the new index up was tried, and refused
    assert witness.ids() == {"b"}
    witness.close()


@pytest.mark.skipif("ELASTICSEARCH_URL" in os.environ, reason="the server there is not ours to kill")
def test_a_crash_is_an_outage_and_after_it_everything_is_there(pytestconfig: pytest.Config) -> None:
    node = shared_elasticsearch(pytestconfig)
    words, vectors = text(node.url, "crash"), dense(node.url, "crash")
    fill(words, a="退货")
    vectors.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    vectors.flush()
    words.upsert([row("b", "没有刷新的退货")])
    node.kill()
    started = time.monotonic()
    for call in (
        lambda: words.search("退货", top_k=1),
        lambda: vectors.search(vector_of("退货"), top_k=1),
        words.ids,
        words.count,
        words.flush,
        words.clear,
        lambda: words.delete(["a"]),
        lambda: words.upsert([row("c", "x")]),
        lambda: ElasticIndex(node.url),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert_store_error(caught.value, node.url, "ADAPTIVE_RAG_ELASTICSEARCH_URL")
    assert time.monotonic() - started < 15
    node.start()
    assert ids_of(vectors.search(vector_of("退货"), top_k=5)) == ["a"]
    assert words.ids() == {"a", "b"}  # acknowledged, although not flushed
    assert ids_of(words.search("退货", top_k=5)) == ["a", "b"]
    words.close()
    vectors.close()
