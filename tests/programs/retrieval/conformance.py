"""What every store promises (`programs/retrieval/base.py`), point by point, as tests.

A store's test file subclasses `DenseConformance` or `TextConformance` and gives two fixtures:

- `open_store`: a function that opens the store, each time as another instance on the same data.
  The data is empty when a test starts. What is still open at the end is closed by the fixture.
- `store`: comes from here, the first instance.
"""

from typing import Any

import numpy as np
import pytest
from conformance_base import (
    DIMENSION,
    HOSTILE,
    K,
    StoreConformance,
    assert_store_error,
    ids_of,
    row,
    unit,
    vector_of,
)

from programs.errors import StoreMismatch
from programs.retrieval.base import DenseStore, Match, Row, TextStore, Vector
from programs.retrieval.chunking import embedded_text
from signatures.records import Passage

__all__ = [
    "DIMENSION",
    "HOSTILE",
    "DenseConformance",
    "K",
    "TextConformance",
    "assert_store_error",
    "ids_of",
    "row",
    "unit",
    "vector_of",
]


class DenseConformance(StoreConformance):
    """The promises of `DenseStore`, for vectors of `DIMENSION` numbers."""

    def write(self, store: DenseStore, *rows: Row) -> None:
        vectors = np.stack([vector_of(r.text) for r in rows]) if rows else np.empty((0, DIMENSION), dtype=np.float32)
        store.upsert(rows, vectors)

    def find(self, store: DenseStore, text: str, **options: Any) -> list[Match]:
        return store.search(vector_of(text), **options)

    def test_it_is_a_dense_store(self, store: Any) -> None:
        assert isinstance(store, DenseStore)

    def test_scores_are_cosines_and_fall_strictly(self, store: DenseStore) -> None:
        rows = [row(name, name) for name in ("same", "near", "orthogonal", "opposite")]
        vectors = np.stack([unit(1, 0), unit(1, 0.5), unit(0, 1), unit(-1, 0)])
        store.upsert(rows, vectors)
        for _ in range(2):  # before and after an index was built
            matches = store.search(unit(1, 0), top_k=10)
            assert ids_of(matches) == ["same", "near", "orthogonal", "opposite"]
            assert [m.score for m in matches] == pytest.approx([1.0, 0.894427, 0.0, -1.0], abs=1e-5)
            assert all(-1.0 <= m.score <= 1.0 for m in matches)
            store.flush()

    @pytest.mark.parametrize(
        "vector",
        [
            np.full(DIMENSION, np.nan),
            np.array([np.inf] + [0.0] * (DIMENSION - 1)),
            np.zeros(DIMENSION),
            np.ones(DIMENSION - 1),
            np.ones(DIMENSION + 1),
            np.ones((1, DIMENSION)),
            np.ones(0),
        ],
        ids=["nan", "inf", "zero", "short", "long", "matrix", "none"],
    )
    def test_a_wrong_vector_raises_before_any_search_or_write(self, store: DenseStore, vector: Vector) -> None:
        self.write(store, row("a#1", "退货"))
        store.flush()
        wrong = vector.astype(np.float32)
        with pytest.raises(StoreMismatch):
            store.search(wrong, top_k=3)
        if wrong.shape == (DIMENSION,):
            with pytest.raises(StoreMismatch):
                store.upsert([row("b#1", "好"), row("c#1", "坏")], np.stack([vector_of("好"), wrong]))
        assert store.ids() == {"a#1"}

    def test_a_wrong_number_of_vectors_raises(self, store: DenseStore) -> None:
        with pytest.raises(StoreMismatch):
            store.upsert([row("a#1", "退货"), row("b#1", "发票")], np.stack([vector_of("退货")]))
        assert store.count() == 0

    def test_read_gives_whole_rows_and_their_vectors_back(self, store: DenseStore) -> None:
        assert store.read(["nobody"])[0] == []
        assert store.read([])[1].shape == (0, DIMENSION)
        passage = Passage(id="a#1", document_id="手册/a.md", title="退货", section="运费", text="由买家承担。\x00\n")
        rows = [
            Row("a#1", "passage", embedded_text(passage), passage),
            Row("a#1?x", "question", "运费谁付？", passage),
            Row("a#1~x", "summary", "买家付运费。", passage),
            Row('b"\\#1', "passage", "不是标题和正文", passage),
        ]
        self.write(store, *rows)
        store.flush()
        wanted = [rows[3].id, "nobody", rows[1].id, rows[0].id, rows[2].id, rows[1].id]
        found, vectors = store.read(wanted)
        assert found == [rows[3], rows[1], rows[0], rows[2]]
        assert vectors.dtype == np.float32
        assert vectors == pytest.approx(np.stack([vector_of(r.text) for r in found]), abs=1e-6)

    def test_read_many(self, store: DenseStore) -> None:
        rows = [row(f"d#{number:04}", f"第 {number} 条规定") for number in range(600)]
        self.write(store, *rows)
        store.flush()
        found, vectors = store.read([r.id for r in reversed(rows)])
        assert found == rows[::-1]
        assert vectors[0] == pytest.approx(vector_of(rows[-1].text), abs=1e-6)

    def test_a_rare_category_is_found_among_many_rows(self, store: DenseStore) -> None:
        rows = [row(f"d#{n:04}", f"{n}", "少" if n % 700 == 3 else "多") for n in range(2000)]
        self.write(store, *rows)
        store.flush()
        found = store.search(vector_of("1"), top_k=8, category="少")
        assert sorted(ids_of(found)) == ["d#0003", "d#0703", "d#1403"]
        everything = np.stack([vector_of(r.text) for r in rows])
        query = vector_of("问")
        nearest = {rows[n].id for n in np.argsort(-(everything @ query))[:8]}
        assert len(nearest & set(ids_of(store.search(query, top_k=8)))) >= 7  # the graph is approximate


class TextConformance(StoreConformance):
    """The promises of `TextStore`."""

    def write(self, store: TextStore, *rows: Row) -> None:
        store.upsert(rows)

    def find(self, store: TextStore, text: str, **options: Any) -> list[Match]:
        return store.search(text, **options)

    def fill(self, store: TextStore, **texts: str) -> None:
        """One row for each text."""
        store.upsert([row(name, text) for name, text in texts.items()])
        store.flush()

    def test_it_is_a_text_store(self, store: Any) -> None:
        assert isinstance(store, TextStore)

    def test_a_chinese_question_finds_its_passage(self, store: TextStore) -> None:
        store.upsert([row(row_id, text, category) for row_id, (text, category) in K.items()])
        store.flush()
        assert ids_of(store.search("退货运费谁付", top_k=5))[0] == "d1"
        assert ids_of(store.search("怎么开发票？", top_k=5)) == ["d2"]
        assert ids_of(store.search("火星上有生命吗", top_k=5)) == []

    def test_only_rows_that_share_a_word(self, store: TextStore) -> None:
        self.fill(store, a="退货 运费", b="运费", c="发票")
        matches = store.search("退货 运费", top_k=5)
        assert ids_of(matches) == ["a", "b"]
        assert matches[0].score > matches[1].score > 0.0

    def test_a_rare_word_counts_more_than_a_common_one(self, store: TextStore) -> None:
        self.fill(store, a="公司 门禁", b="公司 打卡", c="公司 报销", d="公司 年假")
        assert ids_of(store.search("公司 年假", top_k=5))[0] == "d"

    def test_english_is_stemmed_and_case_is_folded(self, store: TextStore) -> None:
        self.fill(store, a="Refund policies for returned items", b="Invoices are issued monthly")
        assert ids_of(store.search("REFUNDING policy", top_k=5)) == ["a"]
        assert ids_of(store.search("invoice", top_k=5)) == ["b"]

    def test_width_and_script_are_folded_and_shown_text_is_not(self, store: TextStore) -> None:
        self.fill(store, a="營收增長 12％", b="本店支援７天退貨", c="ＡＰＩ 说明")
        for query in ("营收增长", "營收", "营收 12%", "12％"):
            [match] = store.search(query, top_k=5)
            assert match.passage.text == "營收增長 12％"
        assert ids_of(store.search("7天", top_k=5)) == ["b"]
        assert ids_of(store.search("７天", top_k=5)) == ["b"]
        assert ids_of(store.search("退货", top_k=5)) == ["b"]
        assert ids_of(store.search("api", top_k=5)) == ["c"]

    def test_numbers_are_found_with_and_without_their_unit(self, store: TextStore) -> None:
        self.fill(store, a="话费补贴每月 50 元", b="住宿 450元", c="年假 50 天")
        assert ids_of(store.search("50元", top_k=1)) == ["a"]
        assert ids_of(store.search("450", top_k=5)) == ["b"]
        assert ids_of(store.search("50天", top_k=1)) == ["c"]

    def test_identifiers_are_found_whole_and_by_their_parts(self, store: TextStore) -> None:
        self.fill(
            store, snake="def refresh_access_token(self):", camel="getHttpServer()", model="网关 LB-200", other="x"
        )
        for query in ("refresh_access_token", "access token", "refreshing the tokens"):
            assert ids_of(store.search(query, top_k=5)) == ["snake"], query
        for query in ("getHttpServer", "gethttpserver", "http server"):
            assert ids_of(store.search(query, top_k=5)) == ["camel"], query
        for query in ("LB-200", "LB200", "lb 200"):
            assert ids_of(store.search(query, top_k=5)) == ["model"], query

    @pytest.mark.parametrize("query", ["，，。", "   ", "？", "", "\n\t", "😀", "\x00", "\ud800", "——", "()[]{}*~^\\"])
    def test_a_query_without_a_word_finds_nothing(self, store: TextStore, query: str) -> None:
        self.fill(store, a="退货，运费。？ 😀 (x) * ~", b="，，。")
        assert store.search(query, top_k=5) == []

    @pytest.mark.parametrize("query", ["你是谁", "的了吗", "the of", "是的"])
    def test_a_query_of_words_of_grammar_is_no_error(self, store: TextStore, query: str) -> None:
        self.fill(store, a="退货的运费是多少")
        assert store.search(query, top_k=5) == []

    @pytest.mark.parametrize(
        "query",
        [
            'a) OR (* AND "退货~^`',
            "text:退货 AND NOT category:公开",
            "退货^9 +发票*",
            "退货' or 1=1 --",
            "/退货/ [a TO b]",
        ],
    )
    def test_signs_of_query_languages_mean_nothing(self, store: TextStore, query: str) -> None:
        self.fill(store, a="无理由退货", b="供应商底价")
        assert ids_of(store.search(query, top_k=5)) == ["a"]

    def test_a_long_query_is_no_error(self, store: TextStore) -> None:
        self.fill(store, a="无理由退货", b="供应商底价")
        words = " ".join(f"zzz{number}" for number in range(10_000))
        assert ids_of(store.search(f"无理由退货 {words}", top_k=5)) == ["a"]
        assert ids_of(store.search("退货的运费由谁来承担呢？" * 400, top_k=5)) == ["a"]

    def test_a_text_without_a_word_can_be_stored(self, store: TextStore) -> None:
        self.fill(store, a="……", b="", c="退货")
        assert store.ids() == {"a", "b", "c"}
        assert ids_of(store.search("退货", top_k=5)) == ["c"]
