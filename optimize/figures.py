"""Figures of a run, as SVG files in its folder."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from signatures.vocabulary import INTENTS

BINS = 10
"""Of the reliability curve, of equal count."""


def score_by_trial(path: Path, names: Sequence[str], scores: Sequence[float], baseline: float) -> None:
    """Mean score on dev of each trial, with the baseline as a line."""
    figure, axes = _axes()
    axes.plot(range(len(names)), scores, marker="o")
    axes.axhline(baseline, linestyle="--", color="grey", label="baseline")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set(ylabel="score on dev", ylim=(0, 1.02), title="score by trial")
    axes.legend()
    _save(figure, path)


def confusion(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Right way against the way that was taken."""
    names = [*INTENTS, "clarify", "unusable"]
    counts = Counter((str(row["expected"]), _known(str(row["outcome"]), names)) for row in rows)
    matrix = np.asarray([[counts[right, taken] for taken in names] for right in names[:-1]])
    figure, axes = _axes((7, 6))
    axes.imshow(matrix, cmap="Blues")
    for (y, x), value in np.ndenumerate(matrix):
        if value:
            axes.text(x, y, str(value), ha="center", va="center")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names) - 1), names[:-1])
    axes.set(xlabel="taken", ylabel="right", title=title)
    _save(figure, path)


def reliability(path: Path, curves: dict[str, Sequence[dict[str, Any]]]) -> None:
    """Share that truly passes against the judge's probability, a curve for each name."""
    figure, axes = _axes((5, 5))
    axes.plot([0, 1], [0, 1], linestyle="--", color="grey")
    for name, rows in curves.items():
        known = sorted((row["outcome"], bool(row["expected"])) for row in rows if isinstance(row["outcome"], float))
        parts = [part for part in np.array_split(np.asarray(known, dtype=float), BINS) if len(part)] if known else []
        axes.plot([part[:, 0].mean() for part in parts], [part[:, 1].mean() for part in parts], marker="o", label=name)
    axes.set(xlabel="probability", ylabel="share that passes", xlim=(0, 1), ylim=(0, 1.02), title="reliability")
    axes.legend()
    _save(figure, path)


def _known(taken: str, names: list[str]) -> str:
    return taken if taken in names else "unusable"


def _axes(size: tuple[float, float] = (6, 4)) -> Any:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "adaptive-rag"  # the same figure gives the same file
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
