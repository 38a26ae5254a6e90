"""The outline of a Markdown text: headings and blocks with their lines, by a real parser.

A `#` inside a code block is no heading, a `|` in a sentence no table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

BlockKind = Literal["paragraph", "table", "fence", "other"]
_KINDS: dict[str, BlockKind] = {"paragraph_open": "paragraph", "table_open": "table", "fence": "fence"}
_MAX_UNDERLINED = 80
"""Characters of a heading that is one by the line under it. Longer, it is a paragraph above a separator."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading.

    Attributes:
        level: 1 to 6.
        title: Its words without markup, on one line.
        first: Its first line, from 0.
        end: The line behind it.
    """

    level: int
    title: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """A part that is better not cut.

    Attributes:
        kind: What it is; `other` are lists, quotations, HTML and what the parser leaves out.
        first: Its first line, from 0.
        end: The line behind it.
    """

    kind: BlockKind
    first: int
    end: int


def headings(text: str, *, is_markdown: bool = True) -> list[Heading]:
    """The headings that are not inside of lists or quotations, in order; in plain text, lines with `## `."""
    return list(_headings(_parser(is_markdown).parse(text), is_markdown))


def outline(text: str, *, is_markdown: bool = True) -> tuple[list[Heading], list[Block]]:
    """Headings and blocks, in order; together they cover every line that is not blank."""
    tokens = _parser(is_markdown).parse(text)
    found = list(_headings(tokens, is_markdown))
    taken = {heading.first for heading in found}
    blocks: list[Block] = []
    lines = text.split("\n")
    position = 0
    for token in (*(t for t in tokens if t.level == 0 and t.map), None):
        first, end = token.map if token is not None and token.map else (len(lines), len(lines))
        # The parser says nothing about link definitions.
        blocks += _rest(lines, position, first)
        if token is not None and first not in taken:
            kind: BlockKind = "paragraph" if token.type == "heading_open" else _KINDS.get(token.type, "other")
            blocks.append(Block(kind, first, end))
        position = max(position, end)
    return found, blocks


@cache
def _parser(is_markdown: bool) -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table") if is_markdown else MarkdownIt("zero").enable("heading")


def _headings(tokens: list[Token], is_markdown: bool) -> Iterator[Heading]:
    for token, inline in zip(tokens, tokens[1:], strict=False):
        if token.type != "heading_open" or token.level or not token.map or not (is_markdown or token.markup == "##"):
            continue
        underlined = not token.markup.startswith("#")
        if not underlined or ("\n" not in inline.content and len(inline.content) <= _MAX_UNDERLINED):
            yield Heading(int(token.tag[1:]), _words(inline), *token.map)


def _words(inline: Token) -> str:
    parts = [child.content or (" " if "break" in child.type else "") for child in inline.children or []]
    return " ".join("".join(parts).split())


def _rest(lines: list[str], first: int, end: int) -> Iterator[Block]:
    begin = first
    for number in range(first, end + 1):
        if number == end or not lines[number].strip():
            if number > begin:
                yield Block("other", begin, number)
            begin = number + 1
