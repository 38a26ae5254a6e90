"""Intervals for figures on few cases, and whether a difference is more than noise."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

RESAMPLES = 2000
SEED = 0
Array = NDArray[np.float64]


def wilson(hits: int, total: int) -> list[float]:
    """A share with its interval after Wilson (1927): [value, low, high]; [0, 0, 1] for nothing."""
    if total == 0:
        return [0.0, 0.0, 1.0]
    bounds = binomtest(hits, total).proportion_ci(method="wilson")
    return [round(hits / total, 3), round(float(bounds.low), 3), round(float(bounds.high), 3)]


def interval(values: Sequence[float], groups: Sequence[str], *, level: float = 0.95, seed: int = SEED) -> list[float]:
    """Mean with a bootstrap interval over groups of cases: [value, low, high].

    Paraphrases of one question rise and fall together, so whole groups are drawn (Efron and Tibshirani,
    1993, chapter 8); drawing cases would make the interval too narrow.

    Args:
        values: One number per case.
        groups: Its group, same length.
        level: Probability mass of the interval.
        seed: Of the draws.
    """
    if not values:
        return [0.0, 0.0, 0.0]
    means = _resampled(np.asarray(values, dtype=np.float64), groups, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return [round(float(np.mean(values)), 3), round(float(low), 3), round(float(high), 3)]


def paired_gain(
    before: Sequence[float], after: Sequence[float], groups: Sequence[str], *, level: float = 0.95, seed: int = SEED
) -> list[float]:
    """Mean of `after - before` on the same cases with its interval: [gain, low, high]."""
    if not len(before) == len(after) == len(groups):
        raise ValueError("a paired comparison needs the same cases on both sides")
    return interval([b - a for a, b in zip(before, after, strict=True)], groups, level=level, seed=seed)


def balanced_interval(
    right: Sequence[bool], labels: Sequence[bool], groups: Sequence[str], *, level: float = 0.95, seed: int = SEED
) -> list[float]:
    """Balanced accuracy with a bootstrap interval over groups: [value, low, high]; accuracy where one label is all.

    Args:
        right: Whether each case was judged rightly.
        labels: Its right verdict, same length.
        groups: Its group, same length.
        level: Probability mass of the interval.
        seed: Of the draws.
    """
    hits, y = np.asarray(right, dtype=np.float64), np.asarray(labels, dtype=bool)
    sides = [side for side in (y, ~y) if side.any()]
    if not sides:
        return [0.0, 0.0, 0.0]

    def figure(drawn: Array) -> Array:
        return np.asarray(np.mean([drawn[:, s] @ hits[s] / drawn[:, s].sum(axis=1) for s in sides], axis=0))

    return _over_draws(figure, groups, level, seed)


def area_interval(
    values: Sequence[float], labels: Sequence[bool], groups: Sequence[str], *, level: float = 0.95, seed: int = SEED
) -> list[float]:
    """Area under the ROC curve with a bootstrap interval over groups: [value, low, high]; 0.5 for one label only.

    The share of pairs of a pass and a fail in which the pass has the higher value, a tie counting half
    (Hanley and McNeil, 1982).

    Args:
        values: One number per case.
        labels: Its right verdict, same length.
        groups: Its group, same length.
        level: Probability mass of the interval.
        seed: Of the draws.
    """
    v, y = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool)
    if not y.any() or y.all():
        return [0.5, 0.0, 1.0]
    above, below = v[y][:, None], v[~y][None, :]
    won = (above > below) + 0.5 * (above == below)

    def figure(drawn: Array) -> Array:
        passes, fails = drawn[:, y], drawn[:, ~y]
        return np.asarray(((passes @ won) * fails).sum(axis=1) / (passes.sum(axis=1) * fails.sum(axis=1)))

    return _over_draws(figure, groups, level, seed)


def _over_draws(figure: Callable[[Array], Array], groups: Sequence[str], level: float, seed: int) -> list[float]:
    """A figure and its interval; `figure` gets how often each case was drawn, shape (draws, cases)."""
    names = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    drawn = np.random.default_rng(seed).integers(len(names), size=(RESAMPLES, len(names)))
    counts = np.zeros((RESAMPLES, len(names)))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    with np.errstate(invalid="ignore"):  # a draw without one of the labels has no figure
        found = figure(counts[:, [names[group] for group in groups]])
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return [round(float(value), 3) for value in (figure(np.ones((1, len(groups))))[0], low, high)]


def _resampled(values: Array, groups: Sequence[str], seed: int) -> Array:
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    sums = np.array([values[places].sum() for places in members.values()])
    counts = np.array([len(places) for places in members.values()])
    drawn = np.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
    return np.asarray(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))


def sign_flip(gains: Sequence[float], groups: Sequence[str], *, seed: int = SEED) -> float:
    """How likely a mean gain at least this large is if either side is as likely to win a case: one-sided p.

    The permutation test of Fisher (1935) over groups. Beside a bootstrap interval because that is too
    sure of itself where only a handful of cases differ: with four wins and no loss it excludes zero, and
    a fair coin falls so once in sixteen times.

    Args:
        gains: After minus before, one number per case.
        groups: Its group, same length.
        seed: Of the draws.
    """
    totals: dict[str, float] = defaultdict(float)
    for gain, group in zip(gains, groups, strict=True):
        totals[group] += gain
    values = np.array([total for total in totals.values() if total != 0])
    if not len(values):
        return 1.0
    if len(values) <= 10:  # all of them
        signs = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
        return float(np.mean(signs @ values >= values.sum() - 1e-9))
    signs = np.random.default_rng(seed).choice([-1, 1], size=(RESAMPLES, len(values)))
    return float((1 + np.sum(signs @ values >= values.sum() - 1e-9)) / (RESAMPLES + 1))
