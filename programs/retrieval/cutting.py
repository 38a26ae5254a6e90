"""Pieces of a text that fit: whole blocks together, and what does not fit alone cut where it harms least."""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from programs.retrieval.markdown import Block
from programs.retrieval.sentences import sentences

Fits = Callable[[str], bool]
Spans = list[tuple[int, int]]

_CLAUSE = frozenset("，、,;：:）)】》 \t\n")
_MAX_FENCE = 100
"""Characters of the line that opens a code block, so that it can be repeated."""


class Source:
    """A text and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self._starts = [0, *accumulate(len(line) + 1 for line in self.lines)]

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Lines `first` to `end`, exclusive, as positions in the text, without the last line end."""
        return self._starts[first], self._starts[end] - 1

    def line(self, position: int) -> int:
        """The line, from 0, in which a position is."""
        return bisect_right(self._starts, position) - 1

    def trimmed(self, start: int, end: int) -> tuple[int, int]:
        """Without blank lines before and white space behind; the indentation of the first line stays."""
        piece = self.text[start:end]
        blank = len(piece) - len(piece.lstrip())
        line_start = piece.rfind("\n", 0, blank) + 1
        if not line_start and start and self.text[start - 1] != "\n":
            line_start = blank
        end = start + len(piece.rstrip())
        return min(start + line_start, end), end

    def slice(self, start: int, end: int) -> str:
        """The text between two positions, trimmed."""
        start, end = self.trimmed(start, end)
        return self.text[start:end]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A slice of the text between what is repeated around it."""

    start: int
    end: int
    before: str = ""
    behind: str = ""


def cut(source: Source, blocks: Sequence[Block], fits: Fits) -> Iterator[tuple[str, int, int]]:
    """Cut neighbouring blocks.

    Args:
        source: The whole text.
        blocks: Blocks in order, with at most blank lines between them.
        fits: Whether a text is short enough.

    Yields:
        Text, first and last line (from 0) of each piece. Each fits, except a single character that does not.
    """
    pieces: list[_Piece] = []
    for block in blocks:
        start, end = source.span(block.first, block.end)
        if pieces and not pieces[-1].before and fits(source.slice(pieces[-1].start, end)):
            pieces[-1] = _Piece(pieces[-1].start, end)
        elif fits(source.slice(start, end)):
            pieces.append(_Piece(start, end))
        else:
            pieces += _cut_block(source, block, fits)
    for piece in pieces:
        start, end = source.trimmed(piece.start, piece.end)
        if start < end:
            yield f"{piece.before}{source.text[start:end]}{piece.behind}", source.line(start), source.line(end - 1)


def longest_start(text: str, fits: Fits) -> str:
    """`text`, or as much of its beginning as fits, at least one character."""
    return text if fits(text) else text[: _fitting_length(text, fits)].rstrip() or text[:1]


def _cut_block(source: Source, block: Block, fits: Fits) -> list[_Piece]:
    rows = [source.span(number, number + 1) for number in range(block.first, block.end)]
    before, behind, inner = _frame(source, block, rows)
    if not inner or not fits(f"{before}{before}{behind}"):
        before, behind, inner = "", "", rows  # what is repeated would leave no room
    finer: list[Callable[[Source, int, int], Spans]] = [_sentence_spans]
    if block.kind == "paragraph":
        inner, finer = _sentence_spans(source, *source.span(block.first, block.end)), [_line_spans]
    spans = _packed(source, inner, lambda text: fits(f"{before}{text}{behind}"), finer)
    return [_Piece(start, end, before, behind) for start, end in spans]


def _frame(source: Source, block: Block, rows: Spans) -> tuple[str, str, Spans]:
    """What every piece of a table or code block repeats, before and behind, and the lines between."""
    if block.kind == "table":
        return f"{source.text[rows[0][0] : rows[1][1]]}\n", "", rows[2:]
    if block.kind == "fence":
        first, last = source.text[slice(*rows[0])], source.text[slice(*rows[-1])]
        mark = first.strip()[:1]
        closed = len(rows) > 1 and last.strip().strip(mark) == "" and len(last.strip()) >= 3
        if len(first) <= _MAX_FENCE:
            return f"{first}\n", f"\n{last if closed else mark * 3}", rows[1:-1] if closed else rows[1:]
    return "", "", rows


def _packed(
    source: Source, spans: Spans, fits: Fits, finer: Sequence[Callable[[Source, int, int], Spans]]
) -> Iterator[tuple[int, int]]:
    """Neighbouring spans joined as long as they fit; one that does not fit alone is cut more finely."""
    begin = end = -1
    for first, last in spans:
        if begin >= 0 and fits(source.slice(begin, last)):
            end = last
            continue
        if begin >= 0:
            yield begin, end
        begin, end = first, last
        if first == last or fits(source.slice(first, last)):
            continue
        if finer:
            parts = _packed(source, finer[0](source, first, last), fits, finer[1:])
        else:
            parts = _by_length(source, first, last, fits)
        # The last part stays open: what follows may fit into it.
        *whole, (begin, end) = parts
        yield from whole
    if begin >= 0:
        yield begin, end


def _sentence_spans(source: Source, start: int, end: int) -> Spans:
    """Sentences with the white space behind them. The end of a line ends none: lines are wrapped anywhere."""
    text = source.text[start:end].replace("\n", " ")
    bounds, position = [], 0
    for sentence in sentences(text):
        position = text.index(sentence, position)
        bounds.append(start + position)
        position += len(sentence)
    return list(pairwise([start, *bounds[1:], end]))


def _line_spans(source: Source, start: int, end: int) -> Spans:
    breaks = (position + 1 for position in range(start, end - 1) if source.text[position] == "\n")
    return list(pairwise([start, *breaks, end]))


def _by_length(source: Source, start: int, end: int, fits: Fits) -> Iterator[tuple[int, int]]:
    while start < end:
        length = _fitting_length(source.text[start:end], fits)
        if start + length < end:
            # Behind the last clause or word of the second half, if there is one.
            window = range(length, length // 2, -1)
            length = next((n for n in window if source.text[start + n - 1] in _CLAUSE), length)
        yield start, start + length
        start += length


def _fitting_length(text: str, fits: Fits) -> int:
    """How many characters of the beginning of `text` fit, at least 1, without tearing one from its marks."""
    low, high = 0, 1
    while high <= len(text) and fits(text[:high]):
        low, high = high, high * 2
    high = min(high, len(text) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(text[:middle]) else (low, middle)
    length = max(low, 1)
    while 1 < length < len(text) and _belong_together(text[length - 1], text[length]):
        length -= 1
    return length


def _belong_together(first: str, second: str) -> bool:
    return bool(unicodedata.combining(second)) or second in "\u200d\ufe0f" or first == "\u200d"
