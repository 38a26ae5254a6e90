"""What dense and text stores have in common; see `conformance.py`."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from programs.errors import StoreError, StoreMismatch
from programs.retrieval.base import Kind, Match, Row, Vector
from signatures.records import Passage

DIMENSION = 16

HOSTILE = [
    '公开" or id > 0 or category == "x',
    "公开' or 1==1 or 'a'=='a",
    "a\\",
    'O"Neil\\',
    'a\\" or key != "',
    "%",
    "公开\n",
    "公开\r\n",
    "a\tb",
    "a\x00b",
    "\x01\x1f\x7f",
    "\\n",
    "\\u516c\\u5f00",
    "",
    " ",
    " 公开",
    "😀👩‍👩‍👧",
    "\u2028\ufeff",
    "{category}",
    "*",
    "长" * 10_000,
]
"""Categories that must match themselves and nothing else."""

K = {
    "d1": ("本店支持七天无理由退货，运费由买家承担。", "公开"),
    "d2": ("电子发票可在订单页申请。", "公开"),
    "d3": ("供应商底价为 83 元。", "机密"),
}
"""A corpus with a secret."""


def row(row_id: str, text: str, category: str = "公开", kind: Kind = "passage", **fields: Any) -> Row:
    """A row whose passage holds the same text."""
    passage_id = row_id.partition("?")[0].removesuffix("~")
    passage = Passage(id=passage_id, document_id="手册/a.md", category=category, text=text, **fields)
    return Row(id=row_id, kind=kind, text=text, passage=passage)


def unit(*numbers: float) -> Vector:
    """These numbers and zeros, at length 1."""
    vector = np.zeros(DIMENSION, dtype=np.float32)
    vector[: len(numbers)] = numbers
    length: Vector = vector / np.linalg.norm(vector)
    return length


def vector_of(text: str) -> Vector:
    """Stands for an embedder: the same vector for the same text, another one for another text."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    length: Vector = vector / np.linalg.norm(vector)
    return length


def ids_of(matches: list[Match]) -> list[str]:
    """Row ids in order."""
    return [match.row_id for match in matches]


def assert_store_error(error: BaseException, *parts: str) -> None:
    """An error of a store that names its store and says these things."""
    assert isinstance(error, StoreError)
    assert error.store
    for part in parts:
        assert part in error.message + error.hint


class StoreConformance:
    """What dense and text stores have in common. `write` and `find` bridge the two."""

    @pytest.fixture
    def store(self, open_store: Callable[[], Any]) -> Any:
        return open_store()

    def write(self, store: Any, *rows: Row) -> None:
        raise NotImplementedError

    def find(self, store: Any, text: str, **options: Any) -> list[Match]:
        raise NotImplementedError

    # Ids, payload, writing.

    def test_a_new_store_is_empty_and_can_be_searched(self, store: Any) -> None:
        assert self.find(store, "退货", top_k=5) == []
        assert store.ids() == set()
        assert store.count() == 0
        assert store.count("question") == 0
        store.delete(["nobody"])
        store.flush()

    def test_the_whole_passage_comes_back(self, store: Any) -> None:
        text = '營收增長 12％\n\t"quoted" \\ back\\slash {braces} \x00 é 😀\u2028 末行\n'
        passage = Passage(
            id="財報/2026.md#0123456789",
            document_id="財報/2026.md",
            title="年度報告「甲」",
            section="一、概況 > 1.1",
            category="管理层专用",
            text=text,
            language="python",
            start_line=3,
            end_line=70_000,
        )
        self.write(store, Row(id=passage.id, kind="passage", text=text, passage=passage))
        store.flush()
        [match] = self.find(store, text, top_k=5)
        assert match.row_id == passage.id
        assert match.passage == passage

    def test_upsert_replaces_a_row_with_the_same_id(self, store: Any) -> None:
        self.write(store, row("a#1", "旧的退货政策", "旧"))
        store.flush()
        self.write(store, row("a#1", "新的发票说明", "新"))
        store.flush()
        assert store.count() == 1
        [match] = self.find(store, "新的发票说明", top_k=5)
        assert match.passage.text == "新的发票说明"
        assert self.find(store, "旧的退货政策", top_k=5, category="旧") == []

    def test_of_two_rows_with_one_id_in_one_call_the_last_stays(self, store: Any) -> None:
        self.write(store, row("a#1", "退货"), row("b#1", "发票"), row("a#1", "运费"))
        store.flush()
        assert store.count() == 2
        assert [m.passage.text for m in self.find(store, "运费", top_k=5) if m.row_id == "a#1"] == ["运费"]

    def test_writing_nothing_is_fine(self, store: Any) -> None:
        self.write(store)
        store.delete([])
        store.flush()
        assert store.count() == 0

    def test_delete_removes_and_ignores_unknown_ids(self, store: Any) -> None:
        self.write(store, row("a#1", "退货"), row("b#1", "退货 运费"))
        store.flush()
        store.delete(row_id for row_id in ("a#1", "unknown", "a#1", 'x" or id != "'))
        store.flush()
        assert store.ids() == {"b#1"}
        assert ids_of(self.find(store, "退货", top_k=5)) == ["b#1"]

    def test_a_deleted_row_can_be_written_again(self, store: Any) -> None:
        self.write(store, row("a#1", "退货"))
        store.flush()
        store.delete(["a#1"])
        self.write(store, row("a#1", "退货 运费"))
        store.flush()
        [match] = self.find(store, "退货 运费", top_k=5)
        assert match.passage.text == "退货 运费"

    def test_hostile_ids_are_plain_ids(self, store: Any) -> None:
        ids = ['a"b', "a\\", "a'b", "a\nb", 'x" or id != "', "%", " ", "资料 (1)/甲.md#1", "😀", "长" * 500]
        self.write(store, *(row(row_id, f"退货 {number}") for number, row_id in enumerate(ids)))
        store.flush()
        assert store.ids() == set(ids)
        store.delete(ids[:5])
        store.flush()
        assert store.ids() == set(ids[5:])

    def test_more_rows_than_one_request_holds(self, store: Any) -> None:
        self.write(store, *(row(f"d#{number:04}", f"第 {number} 条规定") for number in range(1000)))
        store.flush()
        assert store.count() == 1000
        assert len(store.ids()) == 1000
        store.delete([f"d#{number:04}" for number in range(700)])
        store.flush()
        assert store.ids() == {f"d#{number:04}" for number in range(700, 1000)}
        assert self.find(store, "第 999 条规定", top_k=1)[0].row_id == "d#0999"

    def test_a_long_passage_is_kept_whole(self, store: Any) -> None:
        text = "退货" + "。" * 18_000 + "\n末句"  # 54,000 bytes
        self.write(store, row("a#1", text))
        store.flush()
        assert self.find(store, text, top_k=1)[0].passage.text == text

    def test_a_passage_above_65535_bytes_is_kept_whole_or_refused_before_anything_is_written(self, store: Any) -> None:
        text = "退" * 22_000
        try:
            self.write(store, row("a#1", "退货"), row("long#1", text))
        except StoreMismatch as error:
            store.flush()
            assert "long#1" in error.message
            assert store.ids() == set()
        else:
            store.flush()
            assert store.ids() == {"a#1", "long#1"}
            assert self.find(store, text, top_k=1)[0].passage.text == text

    # Kinds.

    def test_a_search_looks_at_one_kind(self, store: Any) -> None:
        self.write(
            store,
            row("a#1", "退货", kind="passage"),
            row("a#1?1", "退货", kind="question"),
            row("a#1?2", "退货", kind="question"),
            row("a#1~", "退货", kind="summary"),
        )
        store.flush()
        assert ids_of(self.find(store, "退货", top_k=5)) == ["a#1"]
        assert ids_of(self.find(store, "退货", top_k=5, kind="question")) == ["a#1?1", "a#1?2"]
        assert ids_of(self.find(store, "退货", top_k=5, kind="summary")) == ["a#1~"]
        assert {m.passage.id for m in self.find(store, "退货", top_k=5, kind="question")} == {"a#1"}
        assert (store.count(), store.count("passage"), store.count("question"), store.count("summary")) == (4, 1, 2, 1)

    # Order.

    def test_at_most_top_k_best_first(self, store: Any) -> None:
        self.write(store, *(row(f"d#{number}", "退货 " * (number + 1)) for number in range(9)))
        store.flush()
        for top_k in (1, 4, 9, 50):
            scores = [match.score for match in self.find(store, "退货", top_k=top_k)]
            assert len(scores) == min(top_k, 9)
            assert scores == sorted(scores, reverse=True)
        assert self.find(store, "退货", top_k=0) == []

    def test_ties_are_ordered_by_id_also_where_top_k_cuts_them(self, store: Any) -> None:
        ids = [f"d#{number:02}" for number in range(40)]
        for row_id in reversed(ids):
            self.write(store, row(row_id, "同一句话"))
            if row_id == "d#20":
                store.flush()
        store.flush()
        assert ids_of(self.find(store, "同一句话", top_k=5)) == ids[:5]
        assert ids_of(self.find(store, "同一句话", top_k=40)) == ids
        assert ids_of(self.find(store, "同一句话", top_k=100)) == ids

    # Filter.

    def test_a_category_matches_itself_and_nothing_else(self, store: Any) -> None:
        stored = [*HOSTILE, "公开", "机密", "售后 FAQ"]
        self.write(store, *(row(f"d#{number:02}", "退货", category) for number, category in enumerate(stored)))
        store.flush()
        for number, category in enumerate(stored):
            matches = self.find(store, "退货", top_k=50, category=category)
            assert ids_of(matches) == [f"d#{number:02}"], category[:40]
            assert matches[0].passage.category == category
        assert len(self.find(store, "退货", top_k=50)) == len(stored)

    def test_a_category_that_nothing_has_finds_nothing(self, store: Any) -> None:
        self.write(store, *(row(row_id, text, category) for row_id, (text, category) in K.items()))
        store.flush()
        for category in [*HOSTILE, "公 开", "售后 faq", "\ud800", "长" * 40_000]:
            assert self.find(store, "退货 供应商底价", top_k=5, category=category) == [], category[:40]

    def test_a_secret_never_passes_the_filter(self, store: Any) -> None:
        self.write(store, *(row(row_id, text, category) for row_id, (text, category) in K.items()))
        store.flush()
        found = self.find(store, "供应商底价", top_k=5, category="公开")
        assert "d3" not in ids_of(found)
        assert ids_of(self.find(store, "供应商底价", top_k=5, category="机密")) == ["d3"]
        assert all(match.passage.category == "公开" for match in found)

    # Visibility, threads, closing.

    def test_after_flush_another_instance_sees_writes_and_deletes(
        self, store: Any, open_store: Callable[[], Any]
    ) -> None:
        other = open_store()
        self.write(store, row("a#1", "退货"), row("b#1", "退货"))
        store.flush()
        assert ids_of(self.find(other, "退货", top_k=5)) == ["a#1", "b#1"]
        store.delete(["a#1"])
        store.flush()
        assert ids_of(self.find(other, "退货", top_k=5)) == ["b#1"]
        assert other.ids() == {"b#1"}
        assert other.count() == 1

    def test_the_old_content_is_found_until_the_new_one_takes_its_place(
        self, store: Any, open_store: Callable[[], Any]
    ) -> None:
        other = open_store()
        self.write(store, row("a#1", "退货"), row("b#1", "退货", "旧"))
        store.flush()
        with store.rebuilding() as fresh:
            assert (fresh.ids(), fresh.count()) == (set(), 0)
            self.write(fresh, row("b#1", "退货", "新"), row("c#1", "退货"), row("d#1?x", "退货", kind="question"))
            fresh.delete(["c#1"])
            fresh.flush()
            assert (fresh.ids(), fresh.count(), fresh.count("question")) == ({"b#1", "d#1?x"}, 2, 1)
            for reader in (store, other):
                assert ids_of(self.find(reader, "退货", top_k=5)) == ["a#1", "b#1"]
            fresh.clear()
            self.write(fresh, row("b#1", "退货", "新"), row("e#1", "退货"))
        for reader in (store, other, open_store()):
            assert reader.ids() == {"b#1", "e#1"}
            assert reader.count() == 2
            found = self.find(reader, "退货", top_k=5)
            assert [(m.row_id, m.passage.category) for m in found] == [("b#1", "新"), ("e#1", "公开")]
        self.write(store, row("f#1", "退货"))
        store.flush()
        assert other.ids() == {"b#1", "e#1", "f#1"}

    def test_a_rebuild_that_fails_changes_nothing(self, store: Any, open_store: Callable[[], Any]) -> None:
        self.write(store, row("a#1", "退货"))
        store.flush()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), store.rebuilding() as fresh:
                self.write(fresh, row("a#1", "发票", "新"), row("b#1", "退货"))
                fresh.flush()
                raise ZeroDivisionError
        for reader in (store, open_store()):
            assert reader.ids() == {"a#1"}
            assert [m.passage.category for m in self.find(reader, "退货", top_k=5)] == ["公开"]
        self.write(store, row("c#1", "退货"))
        store.flush()
        assert store.ids() == {"a#1", "c#1"}

    def test_rows_stay_after_closing(self, store: Any, open_store: Callable[[], Any]) -> None:
        self.write(store, row("a#1", "退货"))
        store.flush()
        store.close()
        again = open_store()
        assert ids_of(self.find(again, "退货", top_k=5)) == ["a#1"]
        self.write(again, row("b#1", "退货"))
        again.flush()
        assert again.ids() == {"a#1", "b#1"}

    def test_many_threads(self, store: Any) -> None:
        self.write(store, row("base#1", "退货"))
        store.flush()
        wrong: list[object] = []
        start = threading.Barrier(8)

        def work(number: int) -> None:
            start.wait(timeout=10)
            for step in range(4):
                if number % 2:
                    self.write(store, row(f"t{number}#{step}", f"线程 {number} 第 {step} 次"))
                    store.flush()
                else:
                    matches = self.find(store, "退货", top_k=3)
                    if "base#1" not in ids_of(matches):
                        wrong.append(matches)
                    store.count()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        store.flush()
        assert wrong == []
        assert store.count() == 1 + 4 * 4
        assert len(store.ids()) == 1 + 4 * 4

    def test_close_twice(self, store: Any) -> None:
        self.write(store, row("a#1", "退货"))
        store.close()
        store.close()

    def test_store_has_a_name(self, store: Any) -> None:
        assert isinstance(store.name, str)
        assert store.name
