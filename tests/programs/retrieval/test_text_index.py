"""The embedded text store keeps the promises of `base.py`, and its own about processes and crashes."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance import TextConformance, assert_store_error, ids_of, row

from programs.errors import StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval.text_index import META_FILE, TantivyTextStore


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], TantivyTextStore]]:
    opened: list[TantivyTextStore] = []

    def open_it() -> TantivyTextStore:
        opened.append(TantivyTextStore(tmp_path / "kb" / "text"))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


class TestTantivyConformance(TextConformance):
    pass


def run(code: str, path: Path) -> "subprocess.Popen[str]":
    """Another process that has the store class, `row` and `path`."""
    prelude = """
        import sys, time
        from pathlib import Path
        from conformance import row
        from programs.retrieval.text_index import TantivyTextStore
        path = Path(sys.argv[1])
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


def test_another_process_sees_what_was_flushed(tmp_path: Path) -> None:
    store = TantivyTextStore(tmp_path)
    process = run(
        "s = TantivyTextStore(path); s.upsert([row('other', '退货')]); s.flush(); print('done', flush=True); input()",
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    # The other process still runs, and its lock is free again.
    assert ids_of(store.search("退货", top_k=5)) == ["other"]
    store.upsert([row("mine", "退货")])
    store.flush()
    assert store.ids() == {"mine", "other"}
    process.communicate("\n", timeout=10)


def test_a_killed_writer_loses_only_what_was_not_flushed(tmp_path: Path) -> None:
    process = run(
        """
        s = TantivyTextStore(path)
        s.upsert([row('kept', '退货')]); s.flush()
        s.upsert([row('lost', '退货')]); s.delete(['kept'])
        print('ready', flush=True); input()
        """,
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    store = TantivyTextStore(tmp_path)
    with pytest.raises(StoreLocked) as caught:
        store.upsert([row("mine", "退货")])
    assert_store_error(caught.value, str(tmp_path))
    assert store.ids() == {"kept"}  # readers are not locked out
    process.kill()
    process.wait(timeout=10)
    store.upsert([row("mine", "退货")])
    store.flush()
    assert store.ids() == {"kept", "mine"}
    assert ids_of(store.search("退货", top_k=5)) == ["kept", "mine"]


def test_two_writers_in_one_process_lock_each_other_out(tmp_path: Path) -> None:
    first, second = TantivyTextStore(tmp_path), TantivyTextStore(tmp_path)
    first.upsert([row("a", "退货")])
    with pytest.raises(StoreLocked):
        second.delete(["a"])
    first.flush()
    second.delete(["a"])
    second.flush()
    assert first.ids() == set()


def test_unflushed_rows_are_kept_by_close(tmp_path: Path) -> None:
    store = TantivyTextStore(tmp_path)
    store.upsert([row("a", "退货")])
    store.close()
    assert TantivyTextStore(tmp_path).ids() == {"a"}


def test_an_index_whose_words_were_cut_otherwise_is_not_searched_and_can_be_made_anew(tmp_path: Path) -> None:
    store = TantivyTextStore(tmp_path)
    store.upsert([row("a#1", "退货"), row("b#1", "运费")])
    store.flush()
    store.close()
    meta = json.loads((tmp_path / META_FILE).read_text("utf-8"))
    (tmp_path / META_FILE).write_text(json.dumps(meta | {"tokens": 0}), "utf-8")
    old = TantivyTextStore(tmp_path)
    with pytest.raises(StoreMismatch) as caught:
        old.search("退货", top_k=1)
    assert "--rebuild" in caught.value.hint
    with pytest.raises(StoreMismatch):
        old.upsert([row("c#1", "发票")])
    with old.rebuilding() as fresh:
        fresh.upsert([row("a#1", "退货")])
    assert [match.row_id for match in old.search("退货", top_k=5)] == ["a#1"]
    old.close()
    again = TantivyTextStore(tmp_path)
    assert again.ids() == {"a#1"}
    assert len(again.search("退货", top_k=5)) == 1
    again.close()


@pytest.mark.parametrize("key", ["schema"])
def test_an_index_of_another_version_is_refused(tmp_path: Path, key: str) -> None:
    TantivyTextStore(tmp_path).close()
    meta = json.loads((tmp_path / META_FILE).read_text("utf-8"))
    (tmp_path / META_FILE).write_text(json.dumps(meta | {key: 0}), "utf-8")
    with pytest.raises(StoreMismatch) as caught:
        TantivyTextStore(tmp_path)
    assert_store_error(caught.value, str(tmp_path), "index the documents again")


def test_a_foreign_or_damaged_index_is_refused(tmp_path: Path) -> None:
    store = TantivyTextStore(tmp_path)
    store.upsert([row("a", "退货")])
    store.close()
    (tmp_path / META_FILE).rename(tmp_path / "aside")
    with pytest.raises(StoreMismatch):
        TantivyTextStore(tmp_path)
    (tmp_path / "aside").rename(tmp_path / META_FILE)
    (tmp_path / "meta.json").write_text("{", "utf-8")
    with pytest.raises(StoreMismatch):
        TantivyTextStore(tmp_path)


def test_a_vanished_index_is_an_outage_and_no_empty_result(tmp_path: Path) -> None:
    path = tmp_path / "index"
    store = TantivyTextStore(path)
    store.upsert([row("a", "退货")])
    store.flush()
    path.rename(tmp_path / "elsewhere")
    for call in (lambda: store.search("退货", top_k=1), store.ids, store.count, lambda: store.upsert([row("b", "x")])):
        with pytest.raises(StoreUnavailable):
            call()


def test_a_path_that_is_a_file_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable):
        TantivyTextStore(tmp_path / "file")


def test_an_id_that_cannot_be_a_term_is_refused(tmp_path: Path) -> None:
    store = TantivyTextStore(tmp_path)
    with pytest.raises(StoreMismatch):
        store.upsert([row("a", "退货"), row("长" * 30_000, "退货")])
    store.delete(["长" * 30_000, "\ud800"])
    store.flush()
    assert store.ids() == set()
