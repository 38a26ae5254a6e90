"""The table of a scored run as records: one row a case, checked when it is read."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimize.tracking import Run, read_table
from programs.errors import AdaptiveRAGError

TABLE = "cases.jsonl"


class CaseTableError(AdaptiveRAGError):
    """A run's table of cases is missing or cannot be used."""


@dataclass(frozen=True)
class CaseRow:
    """What a run made of one case.

    Attributes:
        id, group, split, kind, lang: As labelled; cases of a group are paraphrases.
        score: The metric, 1 is best.
        outcome, expected: What came out and what should have, of any JSON type.
        lm_calls: Requests to language models.
        seconds, prompt_tokens, completion_tokens: None where they were not measured.
        feedback: What was wrong, in a sentence.
        intent: Class of the question, "" where it has none.
    """

    id: str
    group: str
    split: str
    kind: str
    lang: str
    score: float
    outcome: Any = None
    expected: Any = None
    lm_calls: float = 0.0
    seconds: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    feedback: str = ""
    intent: str = ""

    @property
    def tokens(self) -> float | None:
        """Of prompt and reply; None where one of both was not measured."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


COSTS: Mapping[str, Callable[[CaseRow], float | None]] = {
    "lm_calls": lambda row: row.lm_calls,
    "tokens": lambda row: row.tokens,
    "seconds": lambda row: row.seconds,
}
"""What a case costs, by name; None where it was not measured."""


def read_cases(run: Run) -> list[CaseRow]:
    """The rows of a run.

    Raises:
        CaseTableError: There are none, a row lacks a field or has no finite score, or an id stands twice.
    """
    rows = cases_of(read_table(run, TABLE), f"run {run.id} ({run.name})")
    if not rows:
        raise CaseTableError(f"run {run.id} ({run.name}) has no scored cases")
    return rows


def cases_of(records: Iterable[Mapping[str, Any]], where: str = TABLE) -> list[CaseRow]:
    """Rows as records.

    Args:
        records: As `read_table` gives them; further keys are ignored.
        where: Named in errors.

    Raises:
        CaseTableError: As `read_cases`.
    """
    rows: list[CaseRow] = []
    seen: set[str] = set()
    for number, record in enumerate(records, start=1):
        known = {key: record[key] for key in CaseRow.__dataclass_fields__ if key in record}
        try:
            row = CaseRow(**known)
            usable = math.isfinite(row.score)
        except TypeError as error:
            raise CaseTableError(f"{where}, row {number}: {str(error).partition(') ')[2] or error}") from error
        if not usable or row.id in seen:
            raise CaseTableError(f"{where}, row {number}: {'the id stands twice' if usable else 'score is not finite'}")
        seen.add(row.id)
        rows.append(row)
    return rows


def paired(before: Sequence[CaseRow], after: Sequence[CaseRow]) -> list[tuple[CaseRow, CaseRow]]:
    """Rows of the same case on both sides, in the order of the first."""
    by_id = {row.id: row for row in after}
    return [(row, by_id[row.id]) for row in before if row.id in by_id]


def mean_cost(rows: Sequence[CaseRow], name: str) -> float | None:
    """Mean cost of a case; None where it was measured on none.

    Args:
        rows: Cases.
        name: One of `COSTS`.
    """
    known = [value for row in rows if (value := COSTS[name](row)) is not None]
    return math.fsum(known) / len(known) if known else None


def data_digest(component: str) -> str:
    """Digest of a component's labelled files as they are today, as runs keep it; "" where there are none."""
    from data import loading
    from optimize import compiling  # brings the optimizers with it, which a comparison does not need

    files = dict(compiling.FILES).get(component, ())  # type: ignore[call-overload]  # a run may say anything
    known = bool(files) and all((loading.FOLDER / name).exists() for name in files)
    return compiling.data_digest(loading.FOLDER, files) if known else ""


def shown(value: Any, limit: int = 60) -> str:
    """A value of a row as one short line."""
    value = round(value, 4) if isinstance(value, float) else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
