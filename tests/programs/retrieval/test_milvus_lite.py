"""Milvus Lite keeps the promises of `base.py`, for vectors and for text, and its own about its lock."""

import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conformance import (
    DIMENSION,
    HOSTILE,
    DenseConformance,
    TextConformance,
    assert_store_error,
    ids_of,
    row,
    vector_of,
)

from programs.errors import StoreError, StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval.milvus import MilvusDenseStore, MilvusTextStore, quote
from programs.retrieval.milvus_connection import CollectionGone, MilvusConnection


def dense(
    uri: Path | str, collection: str = "passages", *, dimension: int = DIMENSION, embedder: str = "test-embedder"
) -> MilvusDenseStore:
    return MilvusDenseStore(str(uri), collection=collection, dimension=dimension, embedder=embedder)


class TestMilvusLiteDenseConformance(DenseConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Iterator[Callable[[], MilvusDenseStore]]:
        opened: list[MilvusDenseStore] = []

        def open_it() -> MilvusDenseStore:
            opened.append(dense(tmp_path / "kb" / "milvus.db"))
            return opened[-1]

        yield open_it
        for store in opened:
            store.close()


class TestMilvusLiteTextConformance(TextConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Iterator[Callable[[], MilvusTextStore]]:
        opened: list[MilvusTextStore] = []

        def open_it() -> MilvusTextStore:
            opened.append(MilvusTextStore(str(tmp_path / "milvus.db"), collection="texts"))
            return opened[-1]

        yield open_it
        for store in opened:
            store.close()


def run(code: str, path: Path) -> "subprocess.Popen[str]":
    """Another process that has `dense`, `row`, `vector_of` and `path`."""
    prelude = """
        import sys
        import numpy as np
        from conformance import row, vector_of
        from programs.retrieval.milvus import MilvusDenseStore
        path = sys.argv[1]
        def dense():
            return MilvusDenseStore(path, collection="passages", dimension=16, embedder="test-embedder")
    """
    source = textwrap.dedent(prelude) + textwrap.dedent(code)
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", source, str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


HOLD = """
    s = dense()
    s.upsert([row("kept", "退货")], np.stack([vector_of("退货")]))
    s.flush()
    print("ready", flush=True)
    input()
"""


def test_a_file_held_by_another_process_is_locked_and_free_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    holder = run(HOLD, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    for open_it in (lambda: dense(path), lambda: MilvusTextStore(str(path), collection="texts")):
        started = time.monotonic()
        with pytest.raises(StoreLocked) as caught:
            open_it()
        assert time.monotonic() - started < 10
        assert_store_error(caught.value, str(path), str(holder.pid), "server")
    holder.kill()
    holder.wait(timeout=10)
    store = dense(path)
    assert ids_of(store.search(vector_of("退货"), top_k=3)) == ["kept"]
    store.close()


def test_closing_the_last_store_frees_the_file_for_another_process(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    first, second = dense(path), dense(path)
    text = MilvusTextStore(str(path), collection="texts")
    first.close()
    second.upsert([row("a", "退货")], np.stack([vector_of("退货")]))  # the other stores still work
    second.close()
    text.upsert([row("b", "退货")])
    text.flush()
    assert ids_of(text.search("退货", top_k=3)) == ["b"]
    text.close()
    text.close()
    assert list(tmp_path.glob("*.holder.json")) == []
    other = run("s = dense(); print(sorted(s.ids())); s.close()", path)
    output, _ = other.communicate(timeout=20)
    assert output == "['a']\n"


def test_a_file_stays_usable_where_one_store_was_refused(tmp_path: Path) -> None:
    store = dense(tmp_path / "kb.db")
    store.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    other = dense(tmp_path / "kb.db", embedder="another")
    with pytest.raises(StoreMismatch):
        other.count()
    other.close()
    assert store.count() == 1
    store.close()


@pytest.mark.parametrize(
    ("embedder", "size", "said"),
    [("another", DIMENSION, "another"), ("test-embedder", DIMENSION * 2, str(DIMENSION * 2))],
    ids=["embedder", "size"],
)
def test_a_collection_of_another_embedder_is_refused(tmp_path: Path, embedder: str, size: int, said: str) -> None:
    store = dense(tmp_path / "kb.db")
    store.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    store.flush()
    store.close()
    other = dense(tmp_path / "kb.db", embedder=embedder, dimension=size)
    calls: list[Callable[[], object]] = [
        other.ids,
        other.count,
        lambda: other.search(np.ones(size, dtype=np.float32), top_k=1),
        lambda: other.upsert([row("b", "x")], np.ones((1, size), dtype=np.float32)),
        lambda: other.delete(["a"]),
    ]
    for call in calls:
        with pytest.raises(StoreMismatch) as caught:
            call()
        assert_store_error(caught.value, said)
    other.close()


def test_a_text_store_does_not_take_the_collection_of_a_dense_store(tmp_path: Path) -> None:
    store = dense(tmp_path / "kb.db", "same")
    store.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    text = MilvusTextStore(str(tmp_path / "kb.db"), collection="same")
    with pytest.raises(StoreMismatch):
        text.search("退货", top_k=1)
    text.close()
    store.close()


def test_the_limit_counts_bytes_although_lite_counts_characters(tmp_path: Path) -> None:
    store = dense(tmp_path / "kb.db")
    vectors = np.stack([vector_of("a"), vector_of("b")])
    for wrong in (row("long#1", "退" * 22_000), row("long#1", "退货", category="类" * 22_000)):
        with pytest.raises(StoreMismatch) as caught:
            store.upsert([row("a", "退货"), wrong], vectors)
        assert_store_error(caught.value, "long#1", "65535")
    assert store.ids() == set()
    store.close()


@pytest.mark.parametrize("bytes_left", [0, 40])
def test_an_index_that_a_kill_left_half_written_is_made_anew(tmp_path: Path, bytes_left: int) -> None:
    store = dense(tmp_path / "milvus.db")
    store.upsert([row("a#1", "退货"), row("b#1", "运费")], np.stack([vector_of("退货"), vector_of("运费")]))
    store.flush()
    assert ids_of(store.search(vector_of("运费"), top_k=1)) == ["b#1"]
    store.close()
    indexes = list(tmp_path.rglob("*.idx"))
    assert indexes
    for index in indexes:
        index.write_bytes(index.read_bytes()[:bytes_left])
    again = dense(tmp_path / "milvus.db")
    assert ids_of(again.search(vector_of("运费"), top_k=1)) == ["b#1"]
    again.close()


def test_a_file_of_an_older_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.db").write_bytes(b"SQLite format 3\x00")
    with pytest.raises(StoreMismatch) as caught:
        dense(tmp_path / "old.db")
    assert_store_error(caught.value, str(tmp_path / "old.db"))
    assert (tmp_path / "old.db").read_bytes() == b"SQLite format 3\x00"


def test_a_folder_that_cannot_be_made_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable):
        dense(tmp_path / "file" / "kb.db")


def test_a_collection_name_that_milvus_refuses_is_a_store_error(tmp_path: Path) -> None:
    store = dense(tmp_path / "kb.db", "a/../b")
    with pytest.raises(StoreError):
        store.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
    store.close()


def test_what_lite_says_about_itself(tmp_path: Path) -> None:
    store = dense(tmp_path / "kb.db")
    assert re.search(r"\d+\.\d+", store.server_version() or "")
    assert store.supports_text
    store.close()


def test_errors_are_raised_and_not_also_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.db").write_text("x")
    with pytest.raises(StoreError):
        dense(tmp_path / "old.db")
    assert capfd.readouterr() == ("", "")


def test_quote_refuses_what_is_no_string() -> None:
    for value in (["公开"], {"$ne": ""}, 1, None, b"x"):
        with pytest.raises(TypeError):
            quote(value)  # type: ignore[arg-type]


def test_quoted_values_hold_no_end_of_the_literal() -> None:
    for value in ('a"b', 'a\\"b', "a\\", '\\\\"', "a\nb\r"):
        inner = quote(value)[1:-1]
        assert re.fullmatch(r'(?:[^"\\\r\n]|\\.)*', inner), inner


def test_the_parser_of_lite_reads_quoted_values_as_they_were(tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    store = dense(tmp_path / "kb.db")
    rows = [row(f"d#{number}", "退货", category) for number, category in enumerate(HOSTILE)]
    store.upsert(rows, np.stack([vector_of("退货")] * len(rows)))
    client = MilvusClient(str(tmp_path / "kb.db"))
    for category in HOSTILE:
        found = client.query("passages", filter=f"category == {quote(category)}", output_fields=["category"])
        assert [hit["category"] for hit in found] == [category], category[:40]
    client.close()
    store.close()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (100, "collection not found[database=default][collection=swapped]"),
        (1, "fail to search: can't find collection name default:swapped"),
        (65535, "fail to get collection id: can't find collection: swapped"),
    ],
)
def test_a_collection_that_is_gone_is_known_under_the_codes_and_the_words_of_old_servers(
    tmp_path: Path, code: int, message: str
) -> None:
    import pymilvus

    connection = MilvusConnection(pymilvus, str(tmp_path / "a.db"), token=None, timeout=5.0)
    try:
        with pytest.raises(CollectionGone), connection.translated():
            raise pymilvus.MilvusException(code=code, message=message)
        with pytest.raises(StoreUnavailable) as raised, connection.translated():
            raise pymilvus.MilvusException(code=code if code > 100 else 1, message="no node is there")
        assert not isinstance(raised.value, CollectionGone)
    finally:
        connection.close()
