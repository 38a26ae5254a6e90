"""Plots of a comparison as SVG text; matplotlib is only needed here."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimize.compare import Comparison, Side

WIDTH = 7.5
"""Inches; the page scales it."""
MOST_LABELS = 12
"""A confusion matrix with more classes cannot be read."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: the browser has fonts for Chinese, this machine may not
    "svg.hashsalt": "adaptive-rag",  # the same numbers give the same file
    "text.parse_math": False,  # a `$` in a label is no formula
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plots(comparison: "Comparison") -> dict[str, str]:
    """Title and SVG of each plot that the runs have numbers for."""
    sides = comparison.sides
    found = {"Score": _svg(lambda axes: _scores(axes, sides), 0.5 + 0.35 * len(sides))}
    if any(side.gain for side in sides):
        found["Gain over the baseline"] = _svg(lambda axes: _gains(axes, sides), 0.5 + 0.35 * len(sides))
    for attribute in ("kind", "lang"):
        shares = {side.run.name: side.by(attribute) for side in sides}
        rows = len({name for own in shares.values() for name in own})
        found[f"Score by {attribute}"] = _svg(partial(_bars, shares=shares), 0.8 + 0.14 * rows * (len(sides) + 1))
    trials = [side for side in sides if side.run.name.startswith("trial ")]
    if len(trials) > 1:
        found["Score by trial"] = _svg(lambda axes: _trials(axes, trials, comparison.baseline), 2.6)
    last = sides[-1]
    if curve := reliability(last):
        found[f"Reliability of {last.run.name}"] = _svg(lambda axes: _reliability(axes, curve), 3.0)
    if counts := confusion(last):
        found[f"Confusion of {last.run.name}"] = _svg(lambda axes: _confusion(axes, counts), 3.4)
    return found


def reliability(side: "Side", bins: int = 10) -> list[tuple[float, float, int]]:
    """Mean probability, share that came true and count of each bin; [] where outcomes are no probabilities."""
    known = [
        (float(row.outcome), bool(row.expected))
        for row in side.rows
        if isinstance(row.expected, bool) and isinstance(row.outcome, int | float) and not isinstance(row.outcome, bool)
    ]
    if len(known) < len(side.rows) or not all(0 <= value <= 1 for value, _ in known):
        return []
    groups: dict[int, list[tuple[float, bool]]] = {}
    for value, truth in known:
        groups.setdefault(min(int(value * bins), bins - 1), []).append((value, truth))
    return [
        (sum(v for v, _ in own) / len(own), sum(t for _, t in own) / len(own), len(own))
        for _, own in sorted(groups.items())
    ]


def confusion(side: "Side") -> dict[tuple[str, str], int]:
    """Count by expected and given label; {} where outcomes are no labels, or too many."""
    if not all(isinstance(row.outcome, str) and isinstance(row.expected, str) for row in side.rows):
        return {}
    counts: dict[tuple[str, str], int] = {}
    for row in side.rows:
        counts[row.expected, row.outcome] = counts.get((row.expected, row.outcome), 0) + 1
    return counts if len({label for pair in counts for label in pair}) <= MOST_LABELS else {}


def _svg(draw: Callable[[Any], None], height: float) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # measured with another font than the browser's
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]  # without the XML head, which has no place inside a page


def _forest(axes: Any, names: Sequence[str], values: Sequence[Sequence[float]]) -> None:
    for place, (value, low, high) in enumerate(values):
        axes.plot([low, high], [place, place], color="#4472a8", linewidth=2)
        axes.plot([value], [place], "o", color="#1f3d63")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _scores(axes: Any, sides: Sequence["Side"]) -> None:
    _forest(axes, [side.run.name for side in sides], [side.score for side in sides])
    axes.set_xlabel("mean score, 95 % interval")


def _gains(axes: Any, sides: Sequence["Side"]) -> None:
    known = [side for side in sides if side.gain]
    _forest(axes, [side.run.name for side in known], [side.gain for side in known if side.gain])
    axes.axvline(0, color="#888888", linewidth=1, linestyle="--")
    axes.set_xlabel("mean paired gain, 95 % interval")


def _bars(axes: Any, shares: Mapping[str, Mapping[str, tuple[float, int]]]) -> None:
    names = sorted({name for own in shares.values() for name in own})
    height = 0.8 / len(shares)
    for number, (run, own) in enumerate(shares.items()):
        places = [place + number * height for place, name in enumerate(names) if name in own]
        axes.barh(places, [own[name][0] for name in names if name in own], height, label=run)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("mean score")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _trials(axes: Any, trials: Sequence["Side"], baseline: "Side") -> None:
    ordered = sorted(trials, key=lambda side: side.run.started)
    axes.plot(range(1, len(ordered) + 1), [side.score[0] for side in ordered], "o-", color="#1f3d63")
    axes.axhline(baseline.score[0], color="#888888", linewidth=1, linestyle="--")
    axes.set_xlabel("trial, in the order of time (dashed: baseline)")
    axes.set_ylabel("mean score")


def _reliability(axes: Any, curve: Sequence[tuple[float, float, int]]) -> None:
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--")
    axes.plot([value for value, _, _ in curve], [share for _, share, _ in curve], "o-", color="#1f3d63")
    for value, share, count in curve:
        axes.annotate(f"n {count}", (value, share), textcoords="offset points", xytext=(4, -9), fontsize=7)
    axes.set_xlabel("probability given")
    axes.set_ylabel("share that was so")


def _confusion(axes: Any, counts: Mapping[tuple[str, str], int]) -> None:
    labels = sorted({label for pair in counts for label in pair})
    table = [[counts.get((row, column), 0) for column in labels] for row in labels]
    axes.imshow(table, cmap="Blues")
    most = max(counts.values())
    for y, row in enumerate(table):
        for x, count in enumerate(row):
            if count:
                axes.text(x, y, str(count), ha="center", va="center", color="white" if count > most / 2 else "black")
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("given")
    axes.set_ylabel("expected")
