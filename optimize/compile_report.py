"""What a compile shows of itself: figures of the run, and lines for the one who waits."""

import sys

from optimize import figures
from optimize.kept_replies import Ledger
from optimize.scoring import Row
from optimize.statistics import paired_gain
from optimize.tasks import Task
from optimize.tracking import Run
from signatures.vocabulary import JUDGES


def draw(
    parent: Run, task: Task, baseline: list[Row], compiled: list[Row], trials: list[tuple[str, list[Row]]]
) -> None:
    """The figures of a run, into its folder: score by trial, and how router or judge did on test."""

    def dev(rows: list[Row]) -> float:
        own = [row["score"] for row in rows if row["split"] == "dev"]
        return float(sum(own) / len(own))

    shown = [("baseline", baseline), *trials, ("compiled", compiled)]
    names, values = [name for name, _ in shown], [dev(rows) for _, rows in shown]
    figures.score_by_trial(parent.folder / "score_by_trial.svg", names, values, values[0])
    test = {
        name: [row for row in rows if row["split"] == "test"]
        for name, rows in (("baseline", baseline), ("compiled", compiled))
    }
    if task.component == "router":
        for name, rows in test.items():
            figures.confusion(parent.folder / f"confusion_{name}.svg", rows, f"{name}, test")
    elif task.component in JUDGES:
        figures.reliability(parent.folder / "reliability.svg", dict(test))


def write(parent: Run, baseline: list[Row], compiled: list[Row], ledger: Ledger) -> None:
    """Score before and after with the interval of the gain, by split, and what was paid, to standard output."""
    say = sys.stdout.write
    say(f"run {parent.id}\n")
    for split in ("dev", "test"):
        before = [row for row in baseline if row["split"] == split]
        after = [row for row in compiled if row["split"] == split]
        gain, low, high = paired_gain(
            [row["score"] for row in before], [row["score"] for row in after], [row["group"] for row in before]
        )
        first, last = (sum(row["score"] for row in rows) / len(rows) for rows in (before, after))
        say(f"  {split:5} {first:.3f} -> {last:.3f}, gain {gain:+.3f} [{low:+.3f}, {high:+.3f}], n {len(before)}\n")
    failures = ", ".join(f"{kind} {count}" for kind, count in ledger.failures.items()) or "none"
    say(f"  paid {ledger.paid_calls} of {ledger.calls} calls; failures of the endpoint: {failures}\n")
