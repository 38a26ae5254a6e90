"""Which passages an answer rests on, and how that is shown."""

import re
from collections.abc import Mapping, Sequence

from programs import evidence
from signatures.records import Citation, Passage

# Code first, so that an index in it, `argv[1]`, is not taken for a mark.
_MARK = re.compile(r"```.*?```|`[^`\n]+`|[\[［【]\s*(\d{1,2}(?:\s*[,，、]\s*\d{1,2})*)\s*[\]］】]", re.DOTALL)


def cite(answer: str, passages: Sequence[Passage]) -> tuple[str, tuple[Citation, ...]]:
    """The answer with marks [1], [2] … in order of first use, and what they stand for.

    Marks that the model wrote are kept where they name a passage; other numbers in brackets are
    taken away, except in code. An answer without any mark gets the passages that hold its words and numbers.

    Args:
        answer: Text with the model's marks, numbers from 1 in the order of `passages`.
        passages: What the answer was written from.
    """
    order: dict[int, int] = {}

    def renumber(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group()
        numbers = [int(n) for n in re.findall(r"\d+", match.group(1))]
        marks = [f"[{order.setdefault(n, len(order) + 1)}]" for n in numbers if 1 <= n <= len(passages)]
        return "".join(marks)

    text = _MARK.sub(renumber, answer)
    if not order and answer:
        order = {n: i for i, n in enumerate(_supporting(answer, passages), start=1)}
        text = text.rstrip() + "".join(f"[{i}]" for i in order.values())
    citations = [
        Citation(number=i, passage_id=p.id, heading=p.heading, location=p.location)
        for n, i in order.items()
        if (p := passages[n - 1])
    ]
    return text, tuple(sorted(citations, key=lambda citation: citation.number))


def moved(answer: str, places: Mapping[int, int]) -> str | None:
    """The answer with its marks renumbered; None where it names a number that has no new place.

    Args:
        answer: Text with the model's marks.
        places: New number by old one, both from 1.
    """
    lost = False

    def renumber(match: re.Match[str]) -> str:
        nonlocal lost
        if match.group(1) is None:
            return match.group()
        numbers = [int(n) for n in re.findall(r"\d+", match.group(1))]
        lost = lost or any(n not in places for n in numbers)
        return "".join(f"[{places[n]}]" for n in numbers if n in places)

    text = _MARK.sub(renumber, answer)
    return None if lost else text


def _supporting(answer: str, passages: Sequence[Passage]) -> list[int]:
    """Numbers of the fewest passages that hold what the answer says, best first."""
    wanted = evidence.numbers(answer) | evidence.names(answer)
    scored = []
    for number, passage in enumerate(passages, start=1):
        text = f"{passage.heading}\n{passage.text}"
        held = wanted & (evidence.numbers(text) | evidence.names(text))
        scored.append((len(held), evidence.term_overlap(answer, text), -number, held))
    chosen: list[int] = []
    covered: set[str] = set()
    for _, overlap, negative, held in sorted(scored, key=lambda entry: entry[:3], reverse=True):
        if not chosen or (held - covered and overlap > 0):
            chosen.append(-negative)
            covered |= held
    return chosen
