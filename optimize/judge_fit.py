"""Fits how a judge weighs its evidence, from recorded opinions of a language model.

Logistic regression over the language model's log-odds and the features of `programs.features`, in which each
may count only the way that makes sense; how strongly it is held back is chosen by cross-validation over
groups of train and dev, the threshold is the one with the best balanced accuracy out of fold. Test is only
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold

from data.schema import GroundingCase, RelevanceCase
from optimize.gold import GoldPassages
from optimize.recording import JudgeCase, Opinion, passages_of
from programs.features import (
    GROUNDING,
    RELEVANCE,
    UTILITY,
    grounding_features,
    relevance_features,
    utility_features,
)
from programs.similarity import Similarity
from programs.weighing import JudgeState, LinearModel, log_odds
from signatures.vocabulary import JudgeName

FEATURES: dict[JudgeName, Mapping[str, int]] = {"relevance": RELEVANCE, "grounding": GROUNDING, "utility": UTILITY}
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
SEED = 0
UNSURE = 0.2
"""Without a language model a verdict is given only where at most this share of such verdicts was wrong."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Weighed:
    """A case as the weighing sees it.

    Attributes:
        case: The case.
        features: By name, with `lm` where the language model gave an opinion.
        decided: Score that a rule gave; None where evidence is weighed.
        opinion: The language model's probability, None where it gave none.
    """

    case: JudgeCase
    features: Mapping[str, float]
    decided: float | None
    opinion: float | None


def case_features(case: JudgeCase, gold: GoldPassages, similarity: Similarity) -> dict[str, float]:
    """The features that the judge sees for a case."""
    passages = passages_of(case, gold)
    match case:
        case GroundingCase():
            return grounding_features(case.question, case.answer, passages, similarity)
        case RelevanceCase():
            place = [p.id for p in passages].index(gold.shown(case.passage).id)
            return relevance_features(case.question, passages, similarity)[place]
    return utility_features(case.question, case.answer, similarity)


def weighed_cases(
    cases: Sequence[JudgeCase], opinions: Mapping[str, Opinion], gold: GoldPassages, similarity: Similarity
) -> list[Weighed]:
    """Cases with their features; those that were not recorded are left out."""
    found = []
    for case in cases:
        opinion = opinions.get(case.id)
        if opinion is None:
            continue
        features = case_features(case, gold, similarity)
        if opinion.source == "lm" and opinion.score is not None:
            found.append(Weighed(case, {**features, "lm": log_odds(opinion.score)}, None, opinion.score))
        else:
            decided = opinion.score if opinion.source != "lm" and not opinion.error else None
            found.append(Weighed(case, features, decided, None))
    return found


def fit_judge(judge: JudgeName, known: Sequence[Weighed]) -> JudgeState:
    """Fit on train and dev cases.

    Args:
        judge: Which judge.
        known: Cases with an opinion of the language model, and some without.

    Raises:
        ValueError: There are too few cases to fit anything.
    """
    with_lm = [one for one in known if one.opinion is not None]
    names = FEATURES[judge]
    weighed, held = _fit(with_lm, {"lm": 1, **names})
    alone, held_alone = _fit([one for one in known if one.decided is None], names)
    labels = np.asarray([one.case.passed for one in with_lm])
    labels_alone = np.asarray([one.case.passed for one in known if one.decided is None])
    low, high = _sure_bounds(held_alone, labels_alone)
    return JudgeState(weighed=weighed, alone=alone, threshold=best_threshold(held, labels), low=low, high=high)


def fit_alone(judge: JudgeName, known: Sequence[Weighed]) -> tuple[LinearModel, float]:
    """What weighs the features without a language model, and its best threshold out of fold.

    Args:
        judge: Which judge.
        known: Cases; those that a rule decided are left out.

    Raises:
        ValueError: There are too few cases to fit anything.
    """
    weighed = [one for one in known if one.decided is None]
    model, held = _fit(weighed, FEATURES[judge])
    return model, best_threshold(held, np.asarray([one.case.passed for one in weighed], dtype=bool))


def heard_scores(cases: Sequence[Weighed]) -> list[float]:
    """What the language model alone says of each case, where no rule decides; no opinion counts as 0."""
    return [one.opinion if one.opinion is not None else (one.decided or 0.0) for one in cases]


def scores(state: JudgeState, cases: Sequence[Weighed]) -> list[float]:
    """The score that the judge gives each case; UNKNOWN counts as 0, as it never passes."""
    found = []
    for one in cases:
        if one.decided is not None:
            found.append(one.decided)
        elif one.opinion is not None:
            found.append(state.weighed.probability(one.features))
        else:
            alone = state.alone.probability(one.features)
            found.append(0.0 if state.low < alone < state.high else alone)
    return found


def worth(judge: JudgeName, known: Sequence[Weighed]) -> dict[str, float]:
    """What each feature adds: balanced accuracy out of fold with all, minus without it, in points."""
    with_lm = [one for one in known if one.opinion is not None]
    labels = np.asarray([one.case.passed for one in with_lm])
    names = {"lm": 1, **FEATURES[judge]}

    def out_of_fold(chosen: Mapping[str, int]) -> float:
        _, held = _fit(with_lm, chosen)
        return balanced_accuracy(held >= best_threshold(held, labels), labels)

    full = out_of_fold(names)
    return {
        name: round(100 * (full - out_of_fold({n: sign for n, sign in names.items() if n != name})), 1)
        for name in names
    }


def balanced_accuracy(passed: Sequence[bool] | NDArray[np.bool_], labels: Sequence[bool] | NDArray[np.bool_]) -> float:
    """Mean of the shares of passes and of fails that were recognised, in [0, 1]."""
    p, y = np.asarray(passed, dtype=bool), np.asarray(labels, dtype=bool)
    return float((p[y].mean() + (~p[~y]).mean()) / 2) if y.any() and not y.all() else float((p == y).mean())


def calibration_error(values: Sequence[float], labels: Sequence[bool], bins: int = 10) -> float:
    """Expected calibration error over bins of equal count (Nixon et al., 2019), in [0, 1]."""
    order = np.argsort(values, kind="stable")
    v, y = np.asarray(values, dtype=float)[order], np.asarray(labels, dtype=float)[order]
    parts = np.array_split(np.arange(len(v)), min(bins, len(v)))
    return float(sum(len(part) * abs(v[part].mean() - y[part].mean()) for part in parts) / len(v))


def area(values: Sequence[float], labels: Sequence[bool]) -> float:
    """Area under the receiver operating characteristic; 0.5 where only one label is there."""
    return float(roc_auc_score(labels, values)) if len(set(labels)) == 2 else 0.5


def best_threshold(values: Array, labels: NDArray[np.bool_]) -> float:
    """The threshold with the best balanced accuracy; of a plateau its middle."""
    cuts = np.unique(np.round(values, 3))
    points = np.clip(np.concatenate([[0.0], (cuts[:-1] + cuts[1:]) / 2, [1.0]]), 0.0, 1.0)
    found = np.asarray([balanced_accuracy(values >= point, labels) for point in points])
    # Smoothed over neighbours: the best single point of few cases is luck.
    width = max(1, len(points) // 20)
    smooth = np.convolve(np.pad(found, width, mode="edge"), np.ones(2 * width + 1) / (2 * width + 1), mode="valid")
    best = np.flatnonzero(smooth >= smooth.max() - 1e-9)
    return round(float(points[best[len(best) // 2]]), 3)


def _fit(cases: Sequence[Weighed], signs: Mapping[str, int]) -> tuple[LinearModel, Array]:
    """The model, and its probabilities for the cases out of fold.

    Args:
        cases: Cases that have all the features.
        signs: By feature: the way it may count, 1 or -1.
    """
    names = tuple(signs)
    if len(cases) < 20:
        raise ValueError(f"{len(cases)} cases are too few to fit {len(names)} features")
    x = np.asarray([[one.features[name] for name in names] for one in cases])
    y = np.asarray([one.case.passed for one in cases])
    groups = np.asarray([one.case.group for one in cases])
    folds = list(StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED).split(x, y, groups))
    losses, kept = [], []
    for strength in STRENGTHS:
        held = np.zeros(len(y))
        for train, rest in folds:
            center, scale = _standard(x[train])
            weights, bias = signed_logistic(_scaled(x[train], center, scale), y[train], tuple(signs.values()), strength)
            held[rest] = expit(_scaled(x[rest], center, scale) @ weights + bias)
        kept.append(held)
        losses.append(-np.mean(np.log(np.where(y, held, 1 - held) + 1e-12)))
    best = int(np.argmin(losses))
    center, scale = _standard(x)
    weights, bias = signed_logistic(_scaled(x, center, scale), y, tuple(signs.values()), STRENGTHS[best])
    model_state = LinearModel(
        features=names,
        center=_rounded(center),
        scale=_rounded(scale),
        weights=_rounded(weights),
        bias=round(bias, 5),
    )
    return model_state, kept[best]


def signed_logistic(x: Array, y: NDArray[np.bool_], signs: Sequence[int], strength: float) -> tuple[Array, float]:
    """Weights and bias of a logistic regression in which no weight has the wrong sign.

    The penalty is that of scikit-learn's `LogisticRegression`, which has no bounds.

    Args:
        x: Shape (cases, features).
        y: Labels, shape (cases,).
        signs: For each feature 1 or -1.
        strength: Inverse of the penalty on the squared weights.
    """
    side = np.where(y, 1.0, -1.0)

    def loss(point: Array) -> tuple[float, Array]:
        weights, bias = point[:-1], point[-1]
        margin = side * (x @ weights + bias)
        pull = -strength * side * expit(-margin)
        value = strength * np.logaddexp(0.0, -margin).sum() + weights @ weights / 2
        return float(value), np.append(x.T @ pull + weights, pull.sum())

    bounds = [(0.0, None) if sign > 0 else (None, 0.0) for sign in signs]
    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B", bounds=[*bounds, (None, None)])
    return found.x[:-1], float(found.x[-1])


def _standard(x: Array) -> tuple[Array, Array]:
    scale = x.std(axis=0)
    return x.mean(axis=0), np.where(scale > 1e-9, scale, 1.0)


def _scaled(x: Array, center: Array, scale: Array) -> Array:
    return np.asarray(np.clip((x - center) / scale, -4.0, 4.0))  # as LinearModel does


def _sure_bounds(values: Array, labels: NDArray[np.bool_]) -> tuple[float, float]:
    """Probabilities under and over which a verdict without a language model is right often enough."""
    low, high = 0.0, 1.0
    for point in np.unique(np.round(values, 2)):
        below, above = values <= point, values >= point
        if below.sum() >= 10 and labels[below].mean() <= UNSURE:
            low = max(low, float(point))
        if above.sum() >= 10 and (~labels[above]).mean() <= UNSURE:
            high = min(high, float(point))
    return (round(low, 3), round(high, 3)) if low < high else (round(high, 3), round(low, 3))


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)
