"""Documents become passages: by headings first, then by the embedder's own token limit.

A passage never crosses a heading. What is too long is cut between paragraphs, then between
sentences, then between characters; a table is cut between rows and keeps its header, a code block
between lines and keeps its fence. Passages are slices of the source: nothing but white space between
them is lost.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from programs.retrieval.cutting import Source, cut, longest_start
from programs.retrieval.markdown import Block, outline
from programs.retrieval.reading import SourceDocument, read_document
from signatures.records import Passage

VERSION = 2
"""To be raised with every change that cuts some document otherwise."""

MAX_PASSAGE_TOKENS = 512
"""Whatever an embedder could read: longer passages dilute the vector and fill a language model's context."""

MAX_TEXT_BYTES = 8_000
"""Of one passage, four times the usual: some tokenizers count a long run of rare characters as one token,
and stores limit a field to 65,535 bytes together with what is around the text."""

MAX_SECTION = 500
"""Characters of the headings above a passage, for the same reason."""

CountTokens = Callable[[str], int]


def embedded_text(passage: Passage) -> str:
    """What is embedded, indexed and reranked for a passage: its heading, then its text."""
    return _with_heading(passage.heading, passage.text)


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
        Passages in reading order with unique ids; [] where nothing but punctuation is left.
    """
    source = Source(document.text)
    # A third of the room at most for the heading: half of that for the title, the rest for the section.
    title = longest_start(document.title, lambda text: count_tokens(text) <= max_tokens // 6)
    passages = []
    for section in _sections(document, source):
        name = _fitting_name(section, title, lambda text: count_tokens(text) <= max_tokens // 3)
        heading = f"{title} > {name}" if name else title

        def fits(text: str, heading: str = heading) -> bool:
            small = len(text) <= MAX_TEXT_BYTES and len(text.encode()) <= MAX_TEXT_BYTES
            return small and count_tokens(_with_heading(heading, text)) <= max_tokens

        # A heading that had to be shortened stands in the text as well.
        blocks = section.blocks if name == section.name else [section.heading, *section.blocks]
        for text, start, end in cut(source, blocks, fits):
            passages.append(
                Passage(
                    id=passage_id(document_id, name, text),
                    document_id=document_id,
                    title=title,
                    section=name,
                    category=document.category,
                    text=text,
                    start_line=document.first_line + start if document.has_lines else 0,
                    end_line=document.first_line + end if document.has_lines else 0,
                )
            )
    return numbered_doubles(passages)


@dataclass(frozen=True, slots=True)
class _Section:
    """What stands between two headings.

    Attributes:
        names: The headings above it, outermost first.
        heading: The last of them, as a block.
        blocks: Its text.
    """

    names: tuple[str, ...]
    heading: Block
    blocks: list[Block]

    @property
    def name(self) -> str:
        return " > ".join(self.names)


def _sections(document: SourceDocument, source: Source) -> Iterator[_Section]:
    """Sections; a heading without text and without headings below it is text itself."""
    headings, blocks = outline(document.text, is_markdown=document.is_markdown)
    firsts = [block.first for block in blocks]
    bounds = [(0, 0, 0, ""), *((h.first, h.end, h.level, h.title) for h in headings), (len(source.lines), 0, 0, "")]
    path: list[tuple[int, str]] = []
    for (first, begin, level, title), (stop, _, next_level, _) in pairwise(bounds):
        above = [(depth, name) for depth, name in path if depth < level]
        path = [*above, (level, title)] if title else above
        here = Block("paragraph", first, begin)
        inside = blocks[bisect_left(firsts, begin) : bisect_left(firsts, stop)]
        if any(_has_words(source, block) for block in inside):
            yield _Section(_names(path, document.title), here, inside)
        elif title and title != document.title:
            alone = next_level <= level
            yield _Section(_names(above if alone else path, document.title), here, [here] if alone else [])


def _names(path: Sequence[tuple[int, str]], title: str) -> tuple[str, ...]:
    return tuple(name for _, name in path if name != title)


def _has_words(source: Source, block: Block) -> bool:
    return any(char.isalnum() for line in source.lines[block.first : block.end] for char in line)


def _fitting_name(section: _Section, title: str, fits: Callable[[str], bool]) -> str:
    """The section's name; where it is too long, as many inner headings as fit, or the start of the last."""

    def short(name: str) -> bool:
        return len(name) <= MAX_SECTION and fits(f"{title} > {name}")

    for outer in range(len(section.names)):
        if short(name := " > ".join(section.names[outer:])):
            return name
    return longest_start(section.names[-1], short) if section.names else ""


def _with_heading(heading: str, text: str) -> str:
    return f"{heading}\n{text}" if heading else text
