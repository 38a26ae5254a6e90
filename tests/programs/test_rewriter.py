"""Other words for a question: bounded, without doubles, and honest about whether anything changed."""

from typing import Any

import pytest
from scripted_lm import helpful

from programs.errors import LanguageModelError
from programs.rewriter import MAX_PARTS, canonical


@pytest.mark.parametrize(
    ("query", "changed"),
    [
        ("退换货运费承担规定", True),
        ("退货运费谁付", False),
        ("退货运费谁付？", False),
        ("退貨 運費 誰付", False),
        ("“退货运费谁付”", False),
        ("退货规定", False),
        ("。", False),
    ],
)
def test_a_rewrite_says_whether_it_changed_more_than_spelling(make_rag: Any, query: str, changed: bool) -> None:
    rewriter = make_rag(helpful(rewrite={"query": query})).rag.rewriter
    made = rewriter(question="退货运费谁付", tried_queries=["退货运费谁付", "退货规定"], reasons=["没有资料"])
    assert made.changed is changed


def test_quotes_around_a_query_are_taken_off(make_rag: Any) -> None:
    assert make_rag(helpful(rewrite={"query": ' "退换货规定" '})).rag.rewriter(question="退货").query == "退换货规定"


@pytest.mark.parametrize(
    ("one", "other"), [("ＯＴＡ 升级？", "ota升级"), ("營收", "营收"), ("a-b", "ab"), ("{x}", "x")]
)
def test_spelling_does_not_make_a_query_another_one(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)


def test_different_words_and_numbers_are_another_query() -> None:
    assert canonical("岚盒 3.2") != canonical("岚盒 4.0")
    assert canonical("退货") != canonical("换货")


async def test_parts_are_at_most_four_without_doubles_in_order(make_rag: Any) -> None:
    parts = ["岚盒 3.2 的端口？", "岚盒 4.0 的端口？", "岚盒3.2的端口", "。"]
    rewriter = make_rag(helpful(decompose={"parts": parts})).rag.rewriter
    assert await rewriter.parts("区别") == parts[:2]
    rewriter = make_rag(helpful(decompose={"parts": list("甲乙丙丁戊己")})).rag.rewriter
    assert await rewriter.parts("区别") == list("甲乙丙丁")
    assert MAX_PARTS == 4


async def test_no_usable_part_is_the_question_itself(make_rag: Any) -> None:
    assert await make_rag(helpful(decompose={"parts": ["。"]})).rag.rewriter.parts("区别") == ["区别"]


@pytest.mark.parametrize("method", ["parts", "formal", "hypothetical"])
async def test_no_usable_reply_is_one_kind_of_error(make_rag: Any, method: str) -> None:
    rewriter = make_rag(lambda _: "嗯……").rag.rewriter
    with pytest.raises(LanguageModelError) as caught:
        await getattr(rewriter, method)("区别")
    assert (caught.value.kind, caught.value.role) == ("parse", "generator")
