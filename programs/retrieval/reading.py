"""Files become documents: title, category and Markdown text.

Markdown and plain text are read here; HTML, PDF and DOCX by `markitdown`, which turns them into
Markdown, so that there is one way of splitting. Nothing is fetched, whatever a file links to.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from programs.errors import DocumentError
from programs.retrieval.decoding import decoded, printable
from programs.retrieval.markdown import headings

PLAIN_SUFFIXES = frozenset({".md", ".markdown", ".txt"})
RICH_SUFFIXES = frozenset({".html", ".htm", ".pdf", ".docx"})
DOCUMENT_SUFFIXES = PLAIN_SUFFIXES | RICH_SUFFIXES
MAX_NAME = 200
"""Characters of a title or category; what is longer is a paragraph, not a name."""

# A key must stand behind the first rule: a document may also begin with a horizontal rule.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:(?=[\w\"'#].*)(.*?)\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_KEY = re.compile(r"^[\"']?[\w-]+[\"']?[ \t]*:", re.MULTILINE)
_CATEGORY_LINE = re.compile(r"^\s*(?:类别|category)\s*[:：]\s*(.+?)\s*$", re.IGNORECASE)
_CHINESE = r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"
_WRAP = re.compile(rf"(?<={_CHINESE})(?<![。！？；：])\n(?={_CHINESE})(?![（【])")
_SHORT_LINE = 16


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as read.

    Attributes:
        title: From front matter, the first heading of the first level, or the file's name; one line.
        category: What it says of itself, else what the caller gave, else its folder's name.
        text: Markdown, without front matter.
        first_line: Line of the file at which `text` begins, from 1; 0 where lines mean nothing.
        is_markdown: False for plain text, in which `## ` begins a heading and nothing else is markup.
        front_matter: The texts and numbers of the front matter, as written.
    """

    title: str
    category: str
    text: str
    first_line: int
    is_markdown: bool = True
    front_matter: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_lines(self) -> bool:
        """Whether lines of `text` are lines of the file."""
        return self.first_line > 0

    @property
    def version(self) -> str:
        """What the front matter calls the version, else ""."""
        return self.front_matter.get("version", "")


def read_document(path: Path, *, category: str | None = None) -> SourceDocument:
    """Read a file.

    Args:
        path: The file; its suffix says how it is read.
        category: For documents that name none.

    Raises:
        DocumentError: It cannot be read, holds no text, or has a suffix that nothing reads.
    """
    suffix = path.suffix.lower()
    fallback = category or Path(os.path.abspath(path)).parent.name
    if suffix in RICH_SUFFIXES:
        return _read_rich(path, fallback)
    if suffix not in PLAIN_SUFFIXES:
        raise DocumentError(
            f"no reader for {suffix or 'files without suffix'}",
            path=str(path),
            hint=f"Known: {', '.join(sorted(DOCUMENT_SUFFIXES))}.",
        )
    text = read_text(path)
    return _read_txt(path, text, fallback) if suffix == ".txt" else _read_markdown(path, text, fallback)


def read_text(path: Path) -> str:
    """A text file: UTF-8 with or without mark, else GB 18030; control characters become spaces.

    Raises:
        DocumentError: It is neither, or empty.
    """
    text = decoded(_read_bytes(path), str(path))
    if not text.strip():
        raise DocumentError("is empty", path=str(path), hint="Fill it, or leave it out.")
    return text


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {error.strerror}", path=str(path), hint="Check that it is there and may be read."
        ) from error


def _read_markdown(path: Path, text: str, category: str) -> SourceDocument:
    meta: dict[str, str] = {}
    first_line = 1
    found = _FRONT_MATTER.match(text)
    if found and (not found.group(1) or _KEY.search(found.group(1))):
        meta = _front_matter(path, found.group(1) or "")
        first_line += found.group().count("\n")
        text = text[found.end() :]
    title, category = _title(meta.get("title"), text, path), _category(meta.get("category"), category, path)
    return SourceDocument(title, category, text, first_line, front_matter=meta)


def _front_matter(path: Path, text: str) -> dict[str, str]:
    try:
        # Everything is text to this loader: no date that does not exist, no `no` that becomes False.
        loaded = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise DocumentError(
            "has front matter that is no YAML",
            path=str(path),
            hint=f"Correct it, or remove the line --- at the top: {str(error).splitlines()[0]}",
        ) from error
    meta = loaded if isinstance(loaded, dict) else {}
    for name in ("title", "category"):
        if not isinstance(meta.get(name, ""), str):
            raise DocumentError(
                f"has front matter whose {name} is no text", path=str(path), hint=f"Write `{name}: …` on one line."
            )
    return {str(key): value.strip() for key, value in meta.items() if isinstance(value, str)}


def _read_txt(path: Path, text: str, category: str) -> SourceDocument:
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.strip())
    title, body = lines[start].strip(), start + 1
    if body < len(lines) and (named := _CATEGORY_LINE.match(lines[body])):
        category, body = named.group(1), body + 1
    if not any(line.strip() for line in lines[body:]):
        body = start  # a single line is text, not only a title
    if len(title) > MAX_NAME or title.startswith("## "):
        title, body = path.stem, start  # a paragraph or the first section
    return SourceDocument(
        _one_line(title.removeprefix("# ")),
        _category(None, category, path),
        "\n".join(lines[body:]),
        body + 1,
        is_markdown=False,
    )


def _read_rich(path: Path, category: str) -> SourceDocument:
    data = _read_bytes(path)
    suffix = path.suffix.lower()
    named = None
    if suffix in (".html", ".htm"):
        # Decoded here, so that every kind of file is read by the same rules.
        html = decoded(data, str(path), html=True)
        data, named = html.encode(), _MetaCategory.of(html)
    markdown, title = _converted(path, data, suffix)
    text = printable(markdown)
    if not text.strip():
        raise DocumentError("holds no text", path=str(path), hint="A scanned PDF needs text recognition first.")
    if suffix == ".pdf":
        text = _unwrapped(text)
    return SourceDocument(_title(printable(title), text, path), _category(named, category, path), text, 0)


def _converted(path: Path, data: bytes, suffix: str) -> tuple[str, str]:
    """Markdown and title."""
    import logging

    from markitdown import MarkItDown, MarkItDownException, StreamInfo
    from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter

    # Remarks about fonts and boxes, once a page.
    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    reader = MarkItDown(enable_builtins=False, enable_plugins=False)
    # Only the one: with all of them, a broken PDF is read as plain text.
    converter: Any = {".pdf": PdfConverter, ".docx": DocxConverter}.get(suffix, HtmlConverter)
    reader.register_converter(converter())
    charset = None if suffix in (".pdf", ".docx") else "utf-8"
    try:
        result = reader.convert_stream(BytesIO(data), stream_info=StreamInfo(extension=suffix, charset=charset))
    except MarkItDownException as error:
        raise DocumentError(
            f"cannot be read as {suffix[1:].upper()}",
            path=str(path),
            hint="Open it and save it again, without a password.",
        ) from error
    return result.markdown or "", result.title or ""


def _unwrapped(text: str) -> str:
    """Text of a PDF without the line ends inside Chinese sentences, which cut words in two."""

    def joined(paragraph: str) -> str:
        width = max(map(len, paragraph.split("\n")))

        def join(found: re.Match[str]) -> str:
            # Only behind a line that is full: a short one, such as a heading, ends where it ends.
            line = paragraph[paragraph.rfind("\n", 0, found.start()) + 1 : found.start()]
            return "" if len(line) >= max(_SHORT_LINE, width * 0.8) and "|" not in line else "\n"

        return _WRAP.sub(join, paragraph)

    return "\n\n".join(joined(paragraph) for paragraph in text.split("\n\n"))


class _MetaCategory(HTMLParser):
    """Finds `<meta name="category" content="…">`."""

    found: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "meta" and (given.get("name") or "").lower() == "category" and self.found is None:
            self.found = given.get("content")

    @classmethod
    def of(cls, html: str) -> str | None:
        parser = cls()
        try:
            parser.feed(html)
        except AssertionError:  # how it refuses what is no declaration
            pass
        return parser.found


def _title(given: str | None, text: str, path: Path) -> str:
    if not (given or "").strip():
        given = next((heading.title for heading in headings(text) if heading.level == 1 and heading.title), None)
    return _one_line(given or path.stem)[:MAX_NAME]


def _category(given: str | None, fallback: str, path: Path) -> str:
    category = _one_line(given or "") or _one_line(fallback)
    if len(category) > MAX_NAME:
        raise DocumentError(
            f"has a category of {len(category)} characters", path=str(path), hint=f"Shorten it to {MAX_NAME}."
        )
    return category


def _one_line(text: str) -> str:
    return " ".join(text.split())
