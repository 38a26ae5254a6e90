"""Documents are cut at headings, fit the embedder, and lose nothing."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.retrieval.chunking import embedded_text, split_document
from programs.retrieval.reading import SourceDocument
from programs.retrieval.sentences import sentences
from signatures.records import Passage


def split(
    text: str,
    *,
    count: Any = len,
    limit: int = 200,
    first_line: int = 1,
    is_markdown: bool = True,
    title: str = "年假办法",
) -> list[Passage]:
    document = SourceDocument(title, "员工手册", text, first_line, is_markdown)
    return split_document(document, document_id="handbook/leave.md", count_tokens=count, max_tokens=limit)


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_a_passage_ends_at_a_heading_and_names_the_headings_above_it() -> None:
    passages = split("# 年假办法\n\n开头。\n\n## 天数\n\n七天。\n\n### 例外\n\n病假过长没有。\n\n## 结转\n\n五天。")
    assert [(p.section, p.text) for p in passages] == [
        ("", "开头。"),
        ("天数", "七天。"),
        ("天数 > 例外", "病假过长没有。"),
        ("结转", "五天。"),
    ]
    assert passages[1].heading == "年假办法 > 天数"


def test_a_hash_in_a_code_block_is_no_heading() -> None:
    passages = split("## 安装\n\n```bash\n# 先更新\npip install x\n```\n")
    assert len(passages) == 1
    assert "# 先更新" in passages[0].text


def test_a_long_table_is_cut_between_rows_and_keeps_its_header() -> None:
    rows = "\n".join(f"| 城市{n} | {n}00 元 |" for n in range(1, 30))
    passages = split(f"## 标准\n\n| 城市 | 标准 |\n|---|---|\n{rows}\n")
    assert len(passages) > 1
    assert all(p.text.startswith("| 城市 | 标准 |\n|---|---|\n") for p in passages)
    assert sum(p.text.count("00 元") for p in passages) == 29


def test_lines_are_those_of_the_file() -> None:
    text = "# 年假办法\n\n## 天数\n\n七天。\n还有一行。\n\n## 结转\n\n五天。\n"
    passages = split(text, first_line=5)
    lines = [""] * 4 + text.split("\n")
    assert [(lines[p.start_line - 1], lines[p.end_line - 1]) for p in passages] == [
        ("七天。", "还有一行。"),
        ("五天。", "五天。"),
    ]


def test_ids_of_other_sections_survive_an_edit() -> None:
    before = split("## 天数\n\n七天。\n\n## 结转\n\n五天。\n\n## 离职\n\n折算。")
    after = split("## 天数\n\n十天。\n\n## 新的一节\n\n新。\n\n## 结转\n\n五天。\n\n## 离职\n\n折算。")
    assert {p.id for p in before if p.section != "天数"} <= {p.id for p in after}
    assert before[0].id != after[0].id


def test_equal_passages_get_different_ids() -> None:
    passages = split("## 注意\n\n见附件。\n\n## 注意\n\n见附件。")
    assert len({p.id for p in passages}) == 2


SHORT_LINES = [
    "# ",
    "## ",
    "",
    "| a | b |",
    "|---|---|",
    "```",
    "- 项。",
    "> 引。",
    "    缩进",
    "\u3000全角",
]
LONG_LINES = ["### " + "长标题" * 60, "一二三。" * 9, "Abc def. " * 12, "字" * 130, "e\u0301" * 90, "[ref]: http://x"]
LINES = st.lists(st.sampled_from([*SHORT_LINES, *LONG_LINES]), max_size=25)


def numbered(lines: list[str]) -> str:
    """The lines with a word of its own in each that holds any."""
    return "\n".join(
        f"{line}甲{n}乙" if line.strip(" #|-=`") or line.startswith("#") else line for n, line in enumerate(lines)
    )


@settings(max_examples=150, deadline=None)
@given(LINES, st.integers(40, 160), st.booleans())
def test_no_passage_is_too_long_and_no_word_is_lost(lines: list[str], limit: int, is_markdown: bool) -> None:
    text = numbered(lines)
    passages = split(text, limit=limit, is_markdown=is_markdown)
    assert all(len(embedded_text(p)) <= limit for p in passages)
    assert len({p.id for p in passages}) == len(passages)
    kept = bare("".join([*(p.text for p in passages), *(p.section for p in passages)]))
    for number, line in enumerate(lines):
        word = f"甲{number}乙"
        # Where all headings together are too long, the outer ones are left out.
        if word in text and line not in ("# ", "## "):
            # What is repeated around the parts of a table or code block may stand inside of a cut word.
            assert word in kept or {"|---|---|", "```"} & set(lines)
    if not any(line.startswith("#") for line in lines):
        letters = "".join(filter(str.isalnum, text))
        found = "".join(filter(str.isalnum, "".join(p.text for p in passages)))
        assert len(found) >= len(letters)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES)
def test_an_edit_in_one_section_leaves_all_other_ids(first: list[str], second: list[str]) -> None:
    """What stands between two headings of the first level is all that an edit in it can change."""

    def document(middle: list[str]) -> list[Passage]:
        closed = [line for line in middle if line != "```"]  # an open code block swallows what follows
        return split("\n".join(["# 前", "前文。" * 30, "", "# 中", *closed, "", "# 后", "后文。" * 30]), limit=120)

    def outer(passages: list[Passage]) -> list[str]:
        return [p.id for p in passages if p.section in ("前", "后")]

    assert outer(document(first)) == outer(document(second)) != []


def test_a_heading_that_is_all_there_is_becomes_text() -> None:
    passages = split("# 年假办法\n\n## 联系\n\n### 电话 8008\n\n### 邮箱 hr@qinglan.example\n\n## 附则\n\n略。")
    assert [(p.section, p.text) for p in passages] == [
        ("联系", "### 电话 8008"),
        ("联系", "### 邮箱 hr@qinglan.example"),
        ("附则", "略。"),
    ]


def test_a_heading_loses_its_markup_and_a_long_one_its_end() -> None:
    passages = split(f"## **加班** `OA` [申请](http://x)\n\n内容。\n\n## {'很长的标题' * 60}\n\n内容。")
    assert passages[0].section == "加班 OA 申请"
    assert all(len(p.heading) <= 200 // 3 for p in passages)
    assert bare("".join(p.text for p in passages[1:])) == f"##{'很长的标题' * 60}内容。", "kept in the text"


def test_a_paragraph_above_a_separator_is_no_heading() -> None:
    passages = split("第一行\n第二行\n---\n正文。\n\n小节\n---\n\n小节的文字。")
    assert [p.section for p in passages] == ["", "小节"]
    assert "第二行" in passages[0].text


def test_plain_text_knows_only_one_kind_of_heading() -> None:
    passages = split("# 不是标题\n```\n## 问题一\n答一。\n\n标题？\n----\n## 问题二\n答二。", is_markdown=False)
    assert [p.section for p in passages] == ["", "问题一", "问题二"]


def test_a_table_that_fits_is_not_cut() -> None:
    table = "| 城市 | 标准 |\n|---|---|\n" + "\n".join(f"| 城市{n} | {n}00 元 |" for n in range(9))
    passages = split(f"## 标准\n\n{'说明。' * 30}\n\n{table}\n\n{'后文。' * 30}", limit=240)
    assert any(table in p.text for p in passages)


def test_a_long_code_block_is_cut_between_lines_and_stays_a_code_block() -> None:
    code = "\n".join(f"run --step {n}" for n in range(40))
    passages = split(f"## 步骤\n\n```bash\n{code}\n```\n")
    assert len(passages) > 1
    assert all(p.text.startswith("```bash\n") and p.text.endswith("\n```") for p in passages)
    assert sum(p.text.count("run --step") for p in passages) == 40


def test_a_long_paragraph_is_cut_behind_sentences_not_behind_lines() -> None:
    text = "这是一句被换行\n打断的话。" * 40
    for passage in split(f"## 节\n\n{text}"):
        assert passage.text.endswith("话。")
        assert passage.text.startswith("这是")


def test_a_long_english_paragraph_keeps_its_spaces() -> None:
    sentence = "It costs 3.5 yuan. “Really?” she asked. "
    passages = split(sentence * 20)
    assert len(passages) > 1
    assert " ".join(p.text for p in passages) == (sentence * 20).strip()


def test_a_text_without_any_sign_is_cut_between_words_and_never_inside_of_a_letter() -> None:
    words = [f"word{n}" for n in range(200)]
    assert [w for p in split(" ".join(words)) for w in p.text.split()] == words
    for passage in split("e\u0301" * 500):
        assert passage.text.startswith("e")
        assert passage.text.endswith("\u0301")


def test_lines_are_exact_inside_of_a_long_section() -> None:
    text = "## 节\n\n" + "\n\n".join(f"第 {n} 段。" * 12 for n in range(12))
    lines = [""] * 9 + text.split("\n")
    for passage in split(text, first_line=10):
        assert passage.text == "\n".join(lines[passage.start_line - 1 : passage.end_line])


def test_passages_are_small_in_bytes_whatever_the_tokenizer_says() -> None:
    """F4: a run of characters that a tokenizer does not know can be one token."""
    passages = split("字" * 22_000, count=lambda text: 1, limit=512)
    assert all(len(p.text.encode()) <= 8_000 for p in passages)
    assert "".join(p.text for p in passages) == "字" * 22_000


def test_a_long_text_is_split_in_reasonable_time(embedder: Any) -> None:
    started = time.monotonic()
    passages = split("没有断句的文字" * 15_000, count=embedder.count_tokens, limit=512)
    assert time.monotonic() - started < 10
    assert all(embedder.count_tokens(embedded_text(p)) <= 512 for p in passages)
    assert bare("".join(p.text for p in passages)) == "没有断句的文字" * 15_000


def test_every_passage_of_a_document_fits_the_default_embedder(embedder: Any) -> None:
    text = "# 年假办法\n\n" + "\n\n".join(
        f"## 第 {n} 条\n\n" + f"第 {n} 条的规定，共 {n} 款。See § {n}.{n}! " * 60 for n in range(5)
    )
    passages = split(text, count=embedder.count_tokens, limit=embedder.max_tokens)
    sizes = [embedder.count_tokens(embedded_text(p)) for p in passages]
    assert max(sizes) <= embedder.max_tokens
    assert max(sizes) > embedder.max_tokens * 0.8, "the room is used"


def test_a_section_of_nothing_but_punctuation_is_no_passage() -> None:
    assert [p.text for p in split("## 一\n\n---\n\n## 二\n\n内容。")] == ["## 一", "内容。"]


def test_the_end_of_a_long_section_is_found_by_its_own_passage() -> None:
    passages = split("## 附录\n\n" + "说明文字没有断句" * 400 + "紧急联系码是 QX7741")
    assert "QX7741" in passages[-1].text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("支持退货！运费谁付？买家", ["支持退货！", "运费谁付？", "买家"]),
        ("“可以退。”客服说。", ["“可以退。”客服说。"]),
        ("支持七天退货", ["支持七天退货"]),
        ("It is 3.5 km. Then go. 好。", ["It is 3.5 km.", "Then go.", "好。"]),
        ("- 第一\n- 第二", ["- 第一", "- 第二"]),
        ("等等……再说。", ["等等……", "再说。"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
