"""Runs side by side, on the same cases: figures, gains, costs, and which cases got worse.

python -m optimize compare                       the latest run of each experiment
python -m optimize compare --runs ID ID          these; a parent stands for its children
python -m optimize compare --html report.html    the same with plots, in one file
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optimize.cases import COSTS, TABLE, CaseRow, mean_cost, paired, read_cases, shown
from optimize.statistics import interval, paired_gain
from optimize.tracking import Run, RunNotFound, children, experiments_folder, load_run, load_run_folder
from programs.settings import Settings, load_settings

BASELINE = "baseline"
SPLITS = ("dev", "test")
EVEN = 1e-9
"""Scores that differ by less are even."""


@dataclass(frozen=True)
class Side:
    """A run on one split.

    Attributes:
        run: The run.
        rows: Its cases of the split.
        score: Mean with its 95 % interval.
        gain: Mean of run minus baseline over the same cases with its interval; None for the baseline.
        pairs: Baseline and this run, case by case.
        costs: Mean of each of `COSTS` for a case; None where it was not measured.
    """

    run: Run
    rows: tuple[CaseRow, ...]
    score: list[float]
    gain: list[float] | None
    pairs: tuple[tuple[CaseRow, CaseRow], ...]
    costs: dict[str, float | None]

    @property
    def better(self) -> list[tuple[CaseRow, CaseRow]]:
        return [(a, b) for a, b in self.pairs if b.score > a.score + EVEN]

    @property
    def worse(self) -> list[tuple[CaseRow, CaseRow]]:
        return [(a, b) for a, b in self.pairs if b.score < a.score - EVEN]

    def by(self, attribute: str) -> dict[str, tuple[float, int]]:
        """Mean score and count by `kind`, `lang` or `intent`."""
        groups: dict[str, list[float]] = {}
        for row in self.rows:
            groups.setdefault(getattr(row, attribute) or "-", []).append(row.score)
        return {name: (sum(found) / len(found), len(found)) for name, found in sorted(groups.items())}


@dataclass(frozen=True)
class Comparison:
    """Runs of one experiment on one split; the first side is what the others are held against."""

    experiment: str
    split: str
    sides: tuple[Side, ...]

    @property
    def baseline(self) -> Side:
        return self.sides[0]


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--runs", nargs="+", default=[], metavar="ID", help="runs; the latest when none is named")
    parser.add_argument("--component", help="only this experiment")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a report with plots")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="worse cases shown for a run (default 10)")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; the exit code is 0, or 1 where there is nothing to compare."""
    settings = load_settings()
    found = compare(chosen_runs(arguments.runs, arguments.component, settings))
    if not found:
        raise RunNotFound(
            "there are no scored runs to compare",
            hint="python -m optimize compile, or python -m optimize calibrate, makes some.",
        )
    for comparison in found:
        print_comparison(comparison, limit=arguments.limit)
    if arguments.html:
        from optimize.report import write_report

        write_report(found, arguments.html)
        sys.stdout.write(f"\n{arguments.html}\n")
    return 0


def chosen_runs(wanted: Sequence[str], component: str | None, settings: Settings) -> list[Run]:
    """The scored runs that are meant: the named ones, else the latest parent of each experiment.

    Args:
        wanted: Ids, here or of MLflow; a parent stands for its scored children.
        component: Only this experiment; None for all.
        settings: Say where runs are kept.

    Raises:
        RunNotFound: One of the ids is unknown.
    """
    runs: dict[str, Run] = {}
    for run in [load_run(one, settings) for one in wanted] or latest_parents(settings):
        if component is None or run.experiment == component:
            below = [child for child in children(run, settings) if (child.folder / TABLE).exists()]
            runs |= {one.id: one for one in below or [run] if (one.folder / TABLE).exists()}
    return list(runs.values())


def latest_parents(settings: Settings) -> list[Run]:
    """Of each experiment the youngest run that has scored children."""
    latest: dict[str, Run] = {}
    for path in experiments_folder(settings).glob("*/*/run.json"):
        if json.loads(path.read_text(encoding="utf-8"))["parent"]:
            continue
        run = load_run_folder(path.parent)
        known = latest.get(run.experiment)
        if known is not None and known.started >= run.started:
            continue
        if any((child.folder / TABLE).exists() for child in children(run)):
            latest[run.experiment] = run
    return [latest[name] for name in sorted(latest)]


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """One comparison for each experiment and split.

    The baseline is the run of that name, else the first one. A run is held against it on the cases that
    both have, which the table counts.
    """
    found = []
    for experiment in dict.fromkeys(run.experiment for run in runs):
        own = sorted((run for run in runs if run.experiment == experiment), key=lambda run: run.name != BASELINE)
        tables = {run.id: read_cases(run) for run in own}
        for split in SPLITS:
            scored = [(run, [row for row in tables[run.id] if row.split == split]) for run in own]
            sides = _sides([(run, rows) for run, rows in scored if rows])
            if sides:
                found.append(Comparison(experiment, split, tuple(sides)))
    return found


def _sides(scored: Sequence[tuple[Run, list[CaseRow]]]) -> list[Side]:
    sides = []
    for place, (run, rows) in enumerate(scored):
        pairs = paired(scored[0][1], rows) if place else []
        gain = None
        if pairs:
            gain = paired_gain([a.score for a, _ in pairs], [b.score for _, b in pairs], [a.group for a, _ in pairs])
        score = interval([row.score for row in rows], [row.group for row in rows])
        sides.append(Side(run, tuple(rows), score, gain, tuple(pairs), {name: mean_cost(rows, name) for name in COSTS}))
    return sides


def print_comparison(comparison: Comparison, *, limit: int) -> None:
    """The table, and for each run what got worse."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a pipe has no edge to fit to
    console.print()
    table = Table(title=f"{comparison.experiment} · {comparison.split}", title_justify="left")
    for name in ("run", "name", "cases", "score", "gain", "better/worse", *COSTS):
        table.add_column(name, overflow="fold")
    for side in comparison.sides:
        table.add_row(*map(Text, row_of(side)))
    console.print(table)
    for line in _figures(comparison):
        console.print(Text(line))
    for side in comparison.sides[1:]:
        if not side.worse:
            continue
        console.print(Text(f"{side.run.name}: which cases got worse ({len(side.worse)})"))
        for before, after in side.worse[:limit]:
            console.print(Text("  " + worse_line(before, after)))
        if len(side.worse) > limit:
            console.print(Text(f"  and {len(side.worse) - limit} more (--limit)"))


def row_of(side: Side) -> list[str]:
    """The cells of a run in the table."""
    gain = f"{spread(side.gain, sign=True)} (n {len(side.pairs)})" if side.gain else "-"
    tally = f"{len(side.better)}/{len(side.worse)}" if side.gain else "-"
    costs = ["-" if value is None else f"{value:.4g}" for value in side.costs.values()]
    return [side.run.id, side.run.name, str(len(side.rows)), spread(side.score), gain, tally, *costs]


def spread(value: Sequence[float], *, sign: bool = False) -> str:
    """A figure with its interval."""
    form = "+.3f" if sign else ".3f"
    return f"{value[0]:{form}} [{value[1]:{form}}, {value[2]:{form}}]"


def worse_line(before: CaseRow, after: CaseRow) -> str:
    """A case that changed, as one line."""
    return (
        f"{after.id} {after.kind} {after.lang} {before.score:.2f} → {after.score:.2f}: "
        f"{shown(after.outcome)} instead of {shown(after.expected)}"
        + (f" ({shown(after.feedback)})" * bool(after.feedback))
    )


def _figures(comparison: Comparison) -> list[str]:
    """Further figures that the runs keep for the split, such as balanced accuracy."""
    prefix = f"{comparison.split}/"
    names = dict.fromkeys(k for side in comparison.sides for k in side.run.metrics if k.startswith(prefix))
    lines = []
    for name in names:
        values = [f"{s.run.name} {s.run.metrics[name]:.4g}" for s in comparison.sides if name in s.run.metrics]
        lines.append(f"{name.removeprefix(prefix)}: {', '.join(values)}")
    return lines
