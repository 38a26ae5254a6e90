"""Files of every kind become title, category and text."""

from pathlib import Path

import pytest

from programs.errors import DocumentError
from programs.retrieval.reading import read_document


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def test_markdown_gives_its_front_matter_and_the_lines_of_its_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md", "---\ntitle: 年假办法\ncategory: 员工手册\n---\n# 年假办法\n\n七天。\n")
    document = read_document(path)
    assert (document.title, document.category) == ("年假办法", "员工手册")
    assert "title:" not in document.text
    assert path.read_text(encoding="utf-8").split("\n")[document.first_line - 1] == "# 年假办法"


def test_a_document_without_category_takes_the_callers_then_its_folders(tmp_path: Path) -> None:
    path = write(tmp_path / "售后 FAQ" / "a.md", "# 保修\n两年。")
    assert read_document(path).category == "售后 FAQ"
    assert read_document(path, category="产品").category == "产品"


def test_plain_text_gives_title_and_category_from_its_first_lines(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.txt", "员工常见问题\n类别：常见问题\n\n## 年假几天\n七天。\n"))
    assert (document.title, document.category) == ("员工常见问题", "常见问题")
    assert document.text.strip().startswith("## 年假几天")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
def test_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    document = read_document(write(tmp_path / "a.md", "# 报销\n三十天内提交，逾期不受理。", encoding))
    assert "三十天内提交" in document.text
    assert document.title == "报销"


def test_html_gives_headings_title_and_category(tmp_path: Path) -> None:
    html = (
        '<html><head><title>计费问题</title><meta name="category" content="常见问题"></head>'
        "<body><h2>怎么收费？</h2><p>每年 19800 元。</p><script>alert(1)</script></body></html>"
    )
    document = read_document(write(tmp_path / "a.html", html))
    assert (document.title, document.category) == ("计费问题", "常见问题")
    assert "## 怎么收费？" in document.text
    assert "alert" not in document.text


def test_docx_gives_headings_and_tables(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx", reason="python-docx makes the file of this test")
    made = docx.Document()
    made.add_heading("差旅办法", 1)
    made.add_heading("住宿", 2)
    made.add_paragraph("一线城市每晚 450 元。")
    table = made.add_table(rows=2, cols=2)
    for cell, text in zip(
        (c for row in table.rows for c in row.cells), ("城市", "标准", "成都", "350 元"), strict=True
    ):
        cell.text = text
    made.save(str(tmp_path / "a.docx"))
    document = read_document(tmp_path / "a.docx")
    assert "## 住宿" in document.text
    assert "450 元" in document.text
    assert "| 成都 | 350 元 |" in document.text


def test_pdf_gives_its_chinese_text(tmp_path: Path) -> None:
    canvas = pytest.importorskip("reportlab.pdfgen.canvas", reason="reportlab makes the file of this test")
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    page = canvas.Canvas(str(tmp_path / "a.pdf"))
    page.setFont("STSong-Light", 14)
    page.drawString(72, 720, "保修期为二十四个月。")
    page.save()
    assert "保修期为二十四个月" in read_document(tmp_path / "a.pdf").text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.md", b"  \n"),
        ("binary.md", b"\x00\x01\x02" * 100),
        ("broken.pdf", b"%PDF-1.4 nothing"),
        ("broken.docx", b"PK\x03\x04 nothing"),
        ("front.md", b"---\ntitle: [\n---\ntext"),
        ("picture.png", b"\x89PNG"),
        ("notext.md", b"\xff\xff\xff\x80\x80"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DocumentError) as raised:
        read_document(path)
    assert raised.value.path == str(path)


def test_control_characters_and_surrogates_leave_no_trace(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.md", "# 标题\n前\x07后\x1b[0m"))
    assert "\x07" not in document.text
    assert "\x1b" not in document.text
