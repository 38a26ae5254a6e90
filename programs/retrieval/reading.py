"""Files become documents: title, category and Markdown text.

Markdown and plain text are read here; HTML, PDF and DOCX by `markitdown`, which turns them into
Markdown, so that there is one way of splitting.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from programs.errors import DocumentError

PLAIN_SUFFIXES = frozenset({".md", ".markdown", ".txt"})
RICH_SUFFIXES = frozenset({".html", ".htm", ".pdf", ".docx"})
DOCUMENT_SUFFIXES = PLAIN_SUFFIXES | RICH_SUFFIXES

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\ud800-\udfff]")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_CATEGORY_LINE = re.compile(r"^\s*(?:类别|category)\s*[:：]\s*(.+?)\s*$", re.IGNORECASE)
_HTML_CATEGORY = re.compile(r"""<meta\s+name=["']category["']\s+content=["']([^"']*)["']""", re.IGNORECASE)
_HTML_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as read.

    Attributes:
        title: From front matter, the first heading, or the file's name.
        category: What it says of itself, else what the caller gave, else its folder's name.
        text: Markdown, without front matter.
        first_line: Line of the file at which `text` begins, from 1; 0 where lines mean nothing.
    """

    title: str
    category: str
    text: str
    first_line: int


def read_document(path: Path, *, category: str | None = None) -> SourceDocument:
    """Read a file.

    Args:
        path: The file; its suffix says how it is read.
        category: For documents that name none.

    Raises:
        DocumentError: It cannot be read, holds no text, or has a suffix that nothing reads.
    """
    suffix = path.suffix.lower()
    fallback = category or path.parent.name
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}", path=str(path)) from error
    if b"\x00" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("is no text file", path=str(path))
    encodings = ("utf-16",) if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ("utf-8-sig", "gb18030")
    for encoding in encodings:
        try:
            text = data.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    else:
        raise DocumentError("is neither UTF-8 nor GB 18030", path=str(path), hint="Save it as UTF-8.")
    text = _CONTROL.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.strip():
        raise DocumentError("is empty", path=str(path))
    return text


def _read_markdown(path: Path, text: str, category: str) -> SourceDocument:
    meta: dict[str, object] = {}
    first_line = 1
    if found := _FRONT_MATTER.match(text):
        try:
            loaded = yaml.safe_load(found.group(1))
        except yaml.YAMLError as error:
            raise DocumentError(
                "has front matter that is no YAML", path=str(path), hint=str(error).splitlines()[0]
            ) from error
        meta = loaded if isinstance(loaded, dict) else {}
        first_line += found.group().count("\n")
        text = text[found.end() :]
    heading = re.search(r"^#[ \t]+(.+?)[ \t#]*$", text, re.MULTILINE)
    title = str(meta.get("title") or (heading.group(1) if heading else path.stem))
    return SourceDocument(title.strip(), str(meta.get("category") or category).strip(), text, first_line)


def _read_txt(path: Path, text: str, category: str) -> SourceDocument:
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.strip())
    title, body = lines[start].strip(), start + 1
    if body < len(lines) and (named := _CATEGORY_LINE.match(lines[body])):
        category, body = named.group(1), body + 1
    if not any(line.strip() for line in lines[body:]):
        body = start  # a single line is text, not only a title
    return SourceDocument(title[:200], category, "\n".join(lines[body:]), body + 1)


def _read_rich(path: Path, category: str) -> SourceDocument:
    from markitdown import MarkItDown, MarkItDownException
    from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter

    suffix = path.suffix.lower()
    reader = MarkItDown(enable_builtins=False, enable_plugins=False)
    # Only the one: with all of them, a broken PDF is read as plain text.
    converter: Any = {".pdf": PdfConverter, ".docx": DocxConverter}.get(suffix, HtmlConverter)
    reader.register_converter(converter())
    try:
        result = reader.convert_local(str(path))
    except MarkItDownException as error:
        raise DocumentError(
            f"cannot be read as {path.suffix[1:].upper()}",
            path=str(path),
            hint="Open it and save it again; a scanned PDF needs text recognition first.",
        ) from error
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}", path=str(path)) from error
    text = _CONTROL.sub(" ", result.markdown or "")
    if not text.strip():
        raise DocumentError("holds no text", path=str(path), hint="A scanned PDF needs text recognition first.")
    title = (result.title or "").strip()
    if path.suffix.lower() in (".html", ".htm"):
        raw = read_text(path)
        named, titled = _HTML_CATEGORY.search(raw), _HTML_TITLE.search(raw)
        category = named.group(1) if named else category
        title = title or (titled.group(1).strip() if titled else "")
    heading = re.search(r"^#[ \t]+(.+?)[ \t#]*$", text, re.MULTILINE)
    return SourceDocument(title or (heading.group(1) if heading else path.stem), category.strip(), text, 0)
