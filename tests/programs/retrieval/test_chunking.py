"""Documents are cut at headings, fit the embedder, and lose nothing."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.retrieval.chunking import embedded_text, split_document
from programs.retrieval.reading import SourceDocument
from programs.retrieval.sentences import sentences
from signatures.records import Passage


def split(text: str, *, count: Any = len, limit: int = 200, first_line: int = 1) -> list[Passage]:
    document = SourceDocument("年假办法", "员工手册", text, first_line)
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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["# ", "## ", "", "| a | b |", "|---|---|", "```", "- 项。", "一二三。" * 9, "abcdefgh " * 12, "字" * 130]
        ),
        max_size=25,
    )
)
def test_no_passage_is_too_long_and_nothing_is_lost(lines: list[str]) -> None:
    text = "\n".join(f"{line}甲乙{n}" if line in ("# ", "## ") else line for n, line in enumerate(lines))
    passages = split(text, limit=120)
    assert all(len(embedded_text(p)) <= 120 for p in passages)
    assert len({p.id for p in passages}) == len(passages)
    kept = bare("".join(p.text for p in passages))
    for line in lines:
        if line.startswith(("一", "字", "- ")):
            assert bare(line)[:40] in kept or bare(line)[:10] in kept


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
