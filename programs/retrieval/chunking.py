"""Documents become passages: by headings first, then by the embedder's own token limit.

A passage never crosses a heading. What is too long is cut between paragraphs, then between
sentences, then between characters; a table is cut between rows and keeps its header.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from programs.retrieval.reading import SourceDocument, read_document
from programs.retrieval.sentences import sentences
from signatures.records import Passage

VERSION = 1
"""To be raised with every change that cuts some document otherwise."""

CountTokens = Callable[[str], int]
_TABLE_RULE = re.compile(r"^\s*\|?[\s:|-]*-[\s:|-]*\|?\s*$")


def embedded_text(passage: Passage) -> str:
    """What is embedded, indexed and reranked for a passage: its heading, then its text."""
    return f"{passage.heading}\n{passage.text}" if passage.heading else passage.text


def passage_id(document_id: str, section: str, text: str) -> str:
    """The id of a passage, from its content: an edit elsewhere in the document does not change it."""
    digest = hashlib.sha256(f"{section}\0{text}".encode("utf-8", "replace")).hexdigest()[:10]
    return f"{document_id}#{digest}"


def numbered_doubles(passages: Sequence[Passage]) -> list[Passage]:
    """The passages with unique ids: the second of two equal ones gets "-2" behind its id."""
    seen: dict[str, int] = {}
    unique = []
    for passage in passages:
        seen[passage.id] = count = seen.get(passage.id, 0) + 1
        unique.append(passage if count == 1 else passage.model_copy(update={"id": f"{passage.id}-{count}"}))
    return unique


def split_file(
    path: Path, document_id: str, *, category: str | None, count_tokens: CountTokens, max_tokens: int
) -> list[Passage]:
    """Read a document file and split it.

    Raises:
        DocumentError: It cannot be read.
    """
    document = read_document(path, category=category)
    return split_document(document, document_id=document_id, count_tokens=count_tokens, max_tokens=max_tokens)


def split_document(
    document: SourceDocument, *, document_id: str, count_tokens: CountTokens, max_tokens: int
) -> list[Passage]:
    """Split a document.

    Args:
        document: What was read.
        document_id: Its id.
        count_tokens: The embedder's counting.
        max_tokens: The embedder's limit, for heading and text together.

    Returns:
        Passages in reading order with unique ids.
    """
    passages = []
    for section in _sections(document):
        heading = f"{document.title} > {section.title}" if section.title else document.title
        # A heading as long as a passage would leave no room; its own text is cut to a third.
        while count_tokens(heading) > max_tokens // 3:
            heading = heading[: len(heading) // 2]
        room = max_tokens - count_tokens(heading) - 4
        for text, start, end in _fitting(section.text, section.first_line, count_tokens, room):
            passages.append(
                Passage(
                    id=passage_id(document_id, section.title, text),
                    document_id=document_id,
                    title=document.title,
                    section=section.title,
                    category=document.category,
                    text=text,
                    start_line=start if document.first_line else 0,
                    end_line=end if document.first_line else 0,
                )
            )
    return numbered_doubles(passages)


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    text: str
    first_line: int


def _sections(document: SourceDocument) -> Iterator[_Section]:
    lines = document.text.split("\n")
    headings: list[tuple[int, int, int, str]] = []
    tokens = MarkdownIt("commonmark").parse(document.text)
    for token, inline in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open" and token.map and token.level == 0:
            headings.append((token.map[0], token.map[1], int(token.tag[1:]), inline.content.strip()))
    path: list[tuple[int, str]] = []
    begin = 0
    for start, end, level, title in [*headings, (len(lines), len(lines), 1, "")]:
        text = "\n".join(lines[begin:start])
        if text.strip():
            lead = len(text) - len(text.lstrip("\n"))
            names = [name for _, name in path if name != document.title]
            yield _Section(" > ".join(names), text.strip("\n").rstrip(), document.first_line + begin + lead)
        path = [(depth, name) for depth, name in path if depth < level] + [(level, title)]
        begin = end


def _fitting(text: str, first_line: int, count: CountTokens, room: int) -> Iterator[tuple[str, int, int]]:
    """Pieces that fit, each with its first and last line."""
    pieces: list[tuple[str, int, int]] = []
    for block, start in _blocks(text, first_line):
        end = start + block.count("\n")
        if pieces and count(f"{pieces[-1][0]}\n\n{block}") <= room:
            pieces[-1] = (f"{pieces[-1][0]}\n\n{block}", pieces[-1][1], end)
        elif count(block) <= room:
            pieces.append((block, start, end))
        else:
            pieces += [(part, start, end) for part in _cut(block, count, room)]
    yield from pieces


def _blocks(text: str, first_line: int) -> Iterator[tuple[str, int]]:
    """Paragraphs, tables and code blocks with their first lines; a fence is never opened in a cut."""
    block: list[str] = []
    start, fenced = first_line, False
    for number, line in enumerate(text.split("\n"), start=first_line):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        if not line.strip() and not fenced:
            if block:
                yield "\n".join(block), start
            block = []
            continue
        if not block:
            start = number
        block.append(line)
    if block:
        yield "\n".join(block), start


def _cut(block: str, count: CountTokens, room: int) -> list[str]:
    lines = block.split("\n")
    if len(lines) > 2 and "|" in lines[0] and _TABLE_RULE.match(lines[1]):
        header = "\n".join(lines[:2])
        if count(header) < room // 2:
            rows = _packed(lines[2:], "\n", lambda text: count(f"{header}\n{text}"), room)
            return [f"{header}\n{row}" for row in rows]
    if len(lines) > 1:
        return _packed(lines, "\n", count, room)
    return _packed(sentences(block), "", count, room)


def _packed(parts: Sequence[str], joint: str, count: CountTokens, room: int) -> list[str]:
    """Neighbouring parts joined as long as they fit; a part that does not fit alone is cut further."""
    packed: list[str] = []
    for part in parts:
        if packed and count(f"{packed[-1]}{joint}{part}") <= room:
            packed[-1] = f"{packed[-1]}{joint}{part}"
        elif count(part) <= room:
            packed.append(part)
        else:
            finer = sentences(part)
            packed += _packed(finer, "", count, room) if len(finer) > 1 else _by_characters(part, count, room)
    return packed


def _by_characters(text: str, count: CountTokens, room: int) -> list[str]:
    pieces = []
    while text:
        size = len(text)
        while size > 1 and count(text[:size]) > room:
            size = max(1, size // 2)
        pieces.append(text[:size])
        text = text[size:]
    return pieces
