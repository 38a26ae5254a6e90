"""Files of every kind become title, category and text."""

import os
import subprocess
import sys
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
    assert (document.version, document.has_lines) == ("", True)
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


def test_front_matter_is_text_whatever_yaml_would_make_of_it(tmp_path: Path) -> None:
    head = 'title: 2024-13-45\ncategory: no\nversion: 3.10\ntags: [a, b]\nowner: "人力资源部"'
    document = read_document(write(tmp_path / "a.md", f"---\n{head}\n---\n正文。"))
    assert (document.title, document.category, document.version) == ("2024-13-45", "no", "3.10")
    assert document.front_matter["owner"] == "人力资源部"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("---\n\n开头有一条线。\n\n---\n\n正文。", "开头有一条线"),
        ("---\n---\n正文。", "正文"),
        ("---\n没有冒号的一行\n---\n正文。", "没有冒号的一行"),
        ("---\ntitle: 没有结束\n正文。", "没有结束"),
        ("---\r\ntitle: 换行\r\n---\r\n正文。\r\n", "正文"),
    ],
)
def test_what_is_no_front_matter_stays_text(tmp_path: Path, text: str, kept: str) -> None:
    assert kept in read_document(write(tmp_path / "a.md", text)).text


def test_the_title_is_a_real_heading_without_markup(tmp_path: Path) -> None:
    text = "```bash\n# 不是标题\n```\n\n**办法** 一览\n=====\n\n正文。"
    assert read_document(write(tmp_path / "a.md", text)).title == "办法 一览"
    assert read_document(write(tmp_path / "leave.md", "## 只有二级\n\n正文。")).title == "leave"


def test_plain_text_without_a_title_loses_nothing(tmp_path: Path) -> None:
    paragraph = "这一行是一个很长的段落，不是标题。" * 20
    document = read_document(write(tmp_path / "note.txt", f"{paragraph}\n第二行。"))
    assert (document.title, document.is_markdown) == ("note", False)
    assert paragraph in document.text
    assert document.first_line == 1
    only = read_document(write(tmp_path / "one.txt", "只有一行。"))
    assert (only.title, only.text) == ("只有一行。", "只有一行。")
    first = read_document(write(tmp_path / "faq.txt", "## 年假几天\n七天。"))
    assert (first.title, first.text) == ("faq", "## 年假几天\n七天。")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
def test_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    document = read_document(write(tmp_path / "a.md", "# 报销\n三十天内提交，逾期不受理。", encoding))
    assert "三十天内提交" in document.text
    assert document.title == "报销"


@pytest.mark.parametrize("damage", [b"\xe5\xb9", b"\xed\xa0\x80", b"\xff"])
def test_a_few_broken_bytes_do_not_make_another_encoding_of_it(tmp_path: Path, damage: bytes) -> None:
    """A cut character or a lone surrogate: read as GB 18030, the whole file would be nonsense."""
    path = tmp_path / "a.md"
    path.write_bytes("# 报销\n三十天内提交，逾期不受理。单据要齐全。".encode() + damage)
    document = read_document(path)
    assert "三十天内提交" in document.text
    assert document.text.encode(), "can be stored"


def test_html_says_its_encoding_and_its_category_in_any_order(tmp_path: Path) -> None:
    head = '<meta content="客戶&amp;服務" name="Category"><meta charset="big5"><title>\n保固\n說明</title>'
    html = f"<html><head>{head}</head><body><p>兩年。</p></body></html>"
    document = read_document(write(tmp_path / "a.htm", html, "big5"))
    assert (document.title, document.category) == ("保固 說明", "客戶&服務")
    assert document.text.strip() == "兩年。"
    assert not document.has_lines
    gb = '<html><head><meta charset="gb2312"></head><body><h1>计费</h1><p>每年 19800 元。</p></body></html>'
    assert read_document(write(tmp_path / "b.html", gb, "gb18030")).title == "计费"


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


def test_an_equation_in_a_docx_leaves_the_text_around_it_readable(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx", reason="python-docx makes the file of this test")
    from docx.oxml import parse_xml

    made = docx.Document()
    paragraph = made.add_paragraph("补贴等于")
    paragraph._p.append(
        parse_xml(
            '<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:f><m:fPr/>'
            "<m:num><m:r><m:t>里程</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f></m:oMath>"
        )
    )
    made.add_paragraph("按月结算。")
    made.save(str(tmp_path / "a.docx"))
    text = read_document(tmp_path / "a.docx").text
    assert "补贴等于" in text and "按月结算。" in text
    assert "里程" in text and "2" in text


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


def test_the_lines_of_a_pdf_are_joined_where_a_chinese_sentence_goes_on(tmp_path: Path) -> None:
    platypus = pytest.importorskip("reportlab.platypus", reason="reportlab makes the file of this test")
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    body = ParagraphStyle("body", fontName="STSong-Light", fontSize=11, leading=16, wordWrap="CJK")
    sentence = (
        "年假天数按照累计工龄核定，累计工龄由人力资源部依据社会保险缴费记录核定，员工可以在十个工作日内提出复核申请"
    )
    parts = [platypus.Paragraph(text, body) for text in ("第一章总则", f"{sentence}，{sentence}。", "地点\n北京")]
    platypus.SimpleDocTemplate(str(tmp_path / "a.pdf")).build(parts)
    document = read_document(tmp_path / "a.pdf")
    assert f"{sentence}，{sentence}。" in document.text
    assert "第一章总则\n" in document.text, "a short line ends where it ends"
    assert document.title == "a"


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
        ("noise.txt", bytes(range(1, 256)) * 4),
        ("empty.html", b"<html><body></body></html>"),
        ("odd.html", b"<![odd["),
        ("text.pdf", "是文本，不是 PDF".encode()),
        ("list.md", b"---\ntitle: [a, b]\n---\ntext"),
        ("deep.md", b"---\na: " + b"[" * 5000 + b"\n---\ntext"),
        ("category.md", b"---\ncategory: " + b"x" * 300 + b"\n---\ntext"),
        ("folder.md", None),
        ("missing.md", None),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, name: str, data: bytes | None) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    elif name == "folder.md":
        path.mkdir()
    with pytest.raises(DocumentError) as raised:
        read_document(path)
    assert raised.value.path == str(path)
    assert raised.value.hint


def test_control_characters_and_surrogates_leave_no_trace(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.md", "# 标题\n前\x07后\x1b[0m\ufeff"))
    assert "\x07" not in document.text
    assert "\x1b" not in document.text


def test_nothing_is_fetched_and_plain_files_load_no_converter(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "# 标题\n正文。")
    style = '<link href="http://127.0.0.1:9/x.css" rel="stylesheet">'
    write(
        tmp_path / "a.html", f"<html><head>{style}</head><body><p>正文。</p><img src='http://127.0.0.1:9/x.png'></body>"
    )
    program = (
        "import socket, sys\nfrom pathlib import Path\nfrom programs.retrieval.reading import read_document\n"
        "def refuse(*_): raise SystemExit('a connection was tried')\n"
        "socket.socket.connect = refuse\n"
        "read_document(Path('a.md'))\nassert 'markitdown' not in sys.modules\n"
        "assert '正文' in read_document(Path('a.html')).text\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
