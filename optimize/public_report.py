"""Figures of one task on public rows: what is printed and what `--json` writes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Cell = int | float | list[float]
"""A count, a figure, or a figure with its interval."""
Cells = Mapping[str, Mapping[str, Cell]]
"""A table: by name of the row, by name of the column."""


@dataclass(frozen=True)
class Line:
    """One way to decide, measured.

    Attributes:
        name: Of the way.
        cases: On how many rows.
        figures: By name, each with its 95 % interval: [value, low, high].
        threshold: From which a verdict passes, where there is one.
    """

    name: str
    cases: int
    figures: Mapping[str, list[float]]
    threshold: float | None = None


@dataclass
class Report:
    """What was found on one task.

    Attributes:
        task: Which.
        rows: How many rows were read.
        lines: Ways to decide.
        tables: More figures, by title.
        notes: What a reader must know about them.
        cases: One record per row, without its text, to compare versions by pairs.
    """

    task: str
    rows: int
    lines: list[Line] = field(default_factory=list)
    tables: dict[str, Cells] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The report for a file."""
        return asdict(self)

    def text(self) -> str:
        """The report for reading."""
        return "\n".join([f"{self.task}: {self.rows} rows", *self._lines(), *self._tables(), *self._notes()]) + "\n"

    def _lines(self) -> Iterator[str]:
        width = max((len(line.name) for line in self.lines), default=0)
        for line in self.lines:
            cut = "      " if line.threshold is None else f"≥{line.threshold:<5.3f}"
            figures = [f"{name} {v:.3f} [{low:.3f}, {high:.3f}]" for name, (v, low, high) in line.figures.items()]
            yield f"  {line.name:{width}}  {cut}  n {line.cases:<4} {'  '.join(figures)}"

    def _tables(self) -> Iterator[str]:
        for title, cells in self.tables.items():
            names = list(dict.fromkeys(name for row in cells.values() for name in row))
            rows = [[title, *names]]
            rows += [[name, *(_shown(row.get(column, "")) for column in names)] for name, row in cells.items()]
            first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
            yield ""
            for name, *shown in rows:
                cut = "  ".join(f"{cell:>{width}}" for cell, width in zip(shown, widths, strict=True))
                yield f"  {name:{first}}  {cut}"

    def _notes(self) -> Iterator[str]:
        if self.notes:
            yield ""
        for note in self.notes:
            yield f"  {note}"


def _shown(cell: Cell | Literal[""]) -> str:
    match cell:
        case [value, low, high]:
            return f"{value:.2f} [{low:.2f}, {high:.2f}]"
        case float():
            return f"{cell:.2f}"
    return str(cell)
