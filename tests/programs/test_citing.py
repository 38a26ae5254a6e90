"""Citations point to what was used, and code stays code."""

from programs.citing import cite
from signatures.records import Passage

P = [
    Passage(id="a", document_id="手册/退货.md", title="退货", section="期限", text="七天内可以退货。"),
    Passage(id="b", document_id="手册/运费.md", title="运费", text="运费 12 元。"),
    Passage(
        id="c",
        document_id="sdk/client.py",
        title="client",
        text="def login(): ...",
        language="python",
        start_line=3,
        end_line=9,
    ),
]


def test_marks_are_renumbered_in_the_order_of_their_first_use() -> None:
    text, citations = cite("运费 12 元[2]。七天内可以退货[1][2]。", P)
    assert text == "运费 12 元[1]。七天内可以退货[2][1]。"
    assert [(c.number, c.passage_id) for c in citations] == [(1, "b"), (2, "a")]
    assert citations[1].heading == "退货 > 期限"


def test_marks_in_other_brackets_and_lists_are_read() -> None:
    text, citations = cite("甲【1】乙［2，3］丙[1、2]。", P)
    assert text == "甲[1]乙[2][3]丙[1][2]。"
    assert [c.passage_id for c in citations] == ["a", "b", "c"]


def test_a_mark_that_names_no_passage_is_taken_away() -> None:
    text, citations = cite("七天内可以退货[1][7]，详见[0]。", P)
    assert text == "七天内可以退货[1]，详见。"
    assert [c.passage_id for c in citations] == ["a"]


def test_years_and_words_in_brackets_stay() -> None:
    assert cite("见【2026 版】与 [草案][1]。", P)[0] == "见【2026 版】与 [草案][1]。"


def test_an_answer_without_marks_gets_the_fewest_passages_that_hold_it() -> None:
    text, citations = cite("运费 12 元。", P)
    assert text == "运费 12 元。[1]"
    assert [c.passage_id for c in citations] == ["b"]


def test_indices_in_code_are_no_citations() -> None:
    answer = "取第一个参数 `argv[1]`：\n```python\nitems[0] = argv[2]\n```\n见登录函数[3]。"
    text, citations = cite(answer, P)
    assert text == "取第一个参数 `argv[1]`：\n```python\nitems[0] = argv[2]\n```\n见登录函数[1]。"
    assert [c.passage_id for c in citations] == ["c"]
    assert citations[0].location == "sdk/client.py:3-9"


def test_no_answer_has_no_citations() -> None:
    assert cite("", P) == ("", ())
    assert cite("七天。", []) == ("七天。", ())
