"""A real Milvus 2.3.5 keeps the promises of `base.py`, and says clearly that it cannot search text."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conformance import DIMENSION, HOSTILE, DenseConformance, assert_store_error, ids_of, row, vector_of
from index_bench import HashEmbedder, Index, write
from servers import HAS_MILVUS, NO_MILVUS, MilvusServer, free_port

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.catalog import Catalog
from programs.retrieval.copying import Place, copy_index
from programs.retrieval.milvus import MilvusDenseStore, MilvusTextStore, quote
from programs.retrieval.text_index import TantivyTextStore

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not HAS_MILVUS, reason=NO_MILVUS),
]


def dense(
    uri: str,
    collection: str,
    *,
    dimension: int = DIMENSION,
    embedder: str = "test-embedder",
    timeout: float = 10.0,
) -> MilvusDenseStore:
    return MilvusDenseStore(uri, collection=collection, dimension=dimension, embedder=embedder, timeout=timeout)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    running = MilvusServer(tmp_path_factory.mktemp("milvus"))
    running.start()
    yield running
    running.stop()


class TestMilvusServerDenseConformance(DenseConformance):
    @pytest.fixture
    def open_store(self, server: MilvusServer) -> Iterator[Callable[[], MilvusDenseStore]]:
        opened: list[MilvusDenseStore] = []

        def open_it() -> MilvusDenseStore:
            opened.append(dense(server.uri, "passages", timeout=5.0))
            return opened[-1]

        # A new collection takes seconds, so all tests share one.
        sweeper = dense(server.uri, "passages")
        sweeper.delete(sweeper.ids())
        sweeper.close()
        yield open_it
        for store in opened:
            store.close()


def test_a_server_before_2_5_is_refused_for_text(server: MilvusServer) -> None:
    store = dense(server.uri, "versions")
    assert (store.server_version() or "").startswith("v2.3.5")
    assert not store.supports_text
    store.close()
    with pytest.raises(StoreMismatch) as caught:
        MilvusTextStore(server.uri, collection="texts")
    assert_store_error(caught.value, "2.3.5", "2.5")


def test_two_that_make_the_collection_at_once(server: MilvusServer) -> None:
    stores = [dense(server.uri, "race") for _ in range(2)]
    start = threading.Barrier(2)

    def write(number: int) -> None:
        start.wait(timeout=10)
        stores[number].upsert([row(f"r{number}", "退货")], np.stack([vector_of("退货")]))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    assert stores[0].ids() == {"r0", "r1"}
    for store in stores:
        store.close()


def test_a_collection_of_another_embedder_is_refused(server: MilvusServer) -> None:
    store = dense(server.uri, "mine")
    store.upsert([row("a#1", "退货")], np.stack([vector_of("退货")]))
    store.close()
    for embedder, size in (("another", DIMENSION), ("test-embedder", DIMENSION * 2)):
        other = dense(server.uri, "mine", embedder=embedder, dimension=size)
        with pytest.raises(StoreMismatch) as caught:
            other.search(np.ones(size, dtype=np.float32), top_k=1)
        assert_store_error(caught.value, "mine")
        other.close()


def test_a_collection_that_another_program_made_is_refused(server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(server.uri)
    client.create_collection("foreign", dimension=DIMENSION)
    client.close()
    store = dense(server.uri, "foreign")
    with pytest.raises(StoreMismatch):
        store.search(vector_of("退货"), top_k=1)
    store.close()


def test_the_parser_of_the_server_reads_quoted_values_as_they_were(server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    store = dense(server.uri, "quoted")
    rows = [row(f"d#{number}", "退货", category) for number, category in enumerate(HOSTILE)]
    store.upsert(rows, np.stack([vector_of("退货")] * len(rows)))
    client = MilvusClient(server.uri)
    for category in HOSTILE:
        found = client.query("quoted", filter=f"category == {quote(category)}", output_fields=["category"])
        assert [hit["category"] for hit in found] == [category], category[:40]
    client.close()
    store.close()


def test_an_index_is_copied_to_the_server_and_back(server: MilvusServer, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", {f"{n}.md": f"# 文{n}\n\n第 {n} 篇的内容。\n" for n in range(300)})
    source, target = Index(tmp_path / "source", HashEmbedder()), Index(tmp_path / "target", HashEmbedder())
    source.indexer.index_paths([docs])
    there = Place(
        Catalog(tmp_path / "there.sqlite"),
        dense(server.uri, "copied", dimension=8, embedder="hash"),
        TantivyTextStore(tmp_path / "there"),
    )
    assert copy_index("documents", Place(source.catalog, source.dense, source.text), there).rows == 300
    assert copy_index("documents", there, Place(target.catalog, target.dense, target.text)).rows == 300
    assert target.contents() == source.contents()
    for part in (source, target, there.catalog, there.dense, there.text):
        part.close()


def test_searches_go_on_while_the_collection_is_rebuilt(server: MilvusServer) -> None:
    store, reader = (dense(server.uri, "swapped", timeout=2.0) for _ in range(2))
    store.upsert([row("a#1", "退货")], np.stack([vector_of("退货")]))
    found: list[str] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            found.extend(ids_of(reader.search(vector_of("退货"), top_k=5)) or ["nothing"])

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        try:
            for name in ("b#1", "c#1"):
                with store.rebuilding() as fresh:
                    fresh.upsert([row(name, "退货")], np.stack([vector_of("退货")]))
        finally:
            done.set()
        searching.result(timeout=30)
    assert set(found) <= {"a#1", "b#1", "c#1"}
    assert len(found) > 5
    assert reader.ids() == {"c#1"}
    # A process that dies between the two renamings.
    store._client.create_collection("swapped__new", dimension=DIMENSION)
    store._client.rename_collection("swapped", "swapped__old")
    late = dense(server.uri, "swapped", timeout=2.0)
    for one in (reader, late):
        assert ids_of(one.search(vector_of("退货"), top_k=5)) == ["c#1"]
    with late.rebuilding() as fresh:
        fresh.upsert([row("d#1", "退货")], np.stack([vector_of("退货")]))
    assert [one.ids() for one in (store, reader, late)] == [{"d#1"}] * 3
    assert not [name for name in store._client.list_collections() if name.startswith("swapped__")]
    for one in (store, reader, late):
        one.close()


def test_a_refused_connection_is_an_outage_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        dense(f"http://user:geheim@127.0.0.1:{free_port()}", "passages")
    assert time.monotonic() - started < 3
    assert "geheim" not in caught.value.message + caught.value.hint


def test_a_server_that_never_answers_is_an_outage() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            dense(f"http://127.0.0.1:{mute.getsockname()[1]}", "passages", timeout=2.0)
        assert time.monotonic() - started < 6


def test_a_host_that_does_not_exist_is_an_outage() -> None:
    with pytest.raises(StoreUnavailable):
        dense("http://milvus.invalid:19530", "passages")


def test_a_server_that_goes_away_is_an_outage_and_no_empty_result(server: MilvusServer) -> None:
    # The last test of this file: it stops the server.
    store = dense(server.uri, "passages", timeout=3.0)
    store.upsert([row("a#1", "退货")], np.stack([vector_of("退货")]))
    assert ids_of(store.search(vector_of("退货"), top_k=1))
    server.stop()
    for call in (lambda: store.search(vector_of("退货"), top_k=1), lambda: store.delete(["a#1"])):
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            call()
        assert time.monotonic() - started < 10
    store.close()
