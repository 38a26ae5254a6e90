"""Which order of the candidates is best without a cross-encoder, and the fit of the one that learns.

    python -m optimize.rerank_fit [--write]

Candidates are those of all routes that need no language model. Compared on the same candidates: the fused
order, the nearest sentence, their sum, and the fitted combination; fitted on train, chosen on dev, measured on
test. `--write` stores the combination.
"""

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from data.loading import FOLDER, load_question_cases
from data.schema import QuestionCase
from optimize.eval_retrieval import Ranked, eval_stores, index_of
from optimize.gold import GoldPassages
from optimize.statistics import interval, paired_gain
from programs import budget
from programs.retrieval.combination import DEFAULT_PATH, FEATURES, CombinationState, combination_features
from programs.retrieval.pipeline import Searcher
from programs.retrieval.plan import Index, RetrievalPlan
from programs.similarity import Similarity
from programs.weighing import LinearModel
from signatures.records import Hit

PLANS: Mapping[Index, RetrievalPlan] = {
    # As the strategies search, without the routes that need a language model, and every candidate kept.
    "documents": RetrievalPlan(
        routes=("dense", "text", "questions"), rough_top_k=8, top_k=50, weights={"questions": 2.0}, rerank=False
    ),
    "code": RetrievalPlan(
        index="code",
        routes=("dense", "text", "questions"),
        rough_top_k=10,
        top_k=50,
        weights={"text": 2.0, "questions": 2.0},
        rerank=False,
    ),
}
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
Score = Callable[["Candidates"], list[float]]


@dataclass(frozen=True)
class Candidates:
    """What was found for one case, in fused order.

    Attributes:
        case: The case.
        index: Which index was searched.
        gold: Ids of its gold passages.
        hits: The candidates.
        features: Of each candidate.
    """

    case: QuestionCase
    index: Index
    gold: tuple[str, ...]
    hits: Sequence[Hit]
    features: Sequence[Mapping[str, float]]

    def ranked(self, scores: Sequence[float]) -> Ranked:
        order = sorted(range(len(self.hits)), key=lambda place: -scores[place])
        return Ranked(self.case, self.index, self.gold, tuple(self.hits[place].passage.id for place in order))


async def collect(
    searcher: Searcher, cases: Sequence[QuestionCase], gold: GoldPassages, similarity: Similarity
) -> list[Candidates]:
    """Candidates of all cases."""
    done = []
    for case in cases:
        index = index_of(case)
        with budget.spending(budget.Budget()):
            found = await searcher.search([case.question], PLANS[index], category=case.category)
        if found.outages:
            raise RuntimeError(f"{case.id}: {found.degraded}")
        wanted = tuple(gold.find(one).id for one in case.gold)
        features = combination_features(case.question, found.hits, similarity)
        done.append(Candidates(case, index, wanted, found.hits, features))
    return done


def fit(cases: Sequence[Candidates], strength: float) -> LinearModel:
    """A logistic regression over the candidates of some cases."""
    x = np.asarray([[features[name] for name in FEATURES] for one in cases for features in one.features])
    y = np.asarray([hit.passage.id in one.gold for one in cases for hit in one.hits])
    # Each case counts the same, however many candidates it has.
    weights = np.asarray([1 / len(one.hits) for one in cases for _ in one.hits])
    center, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    scaled = np.clip((x - center) / scale, -4, 4)
    model = LogisticRegression(C=strength, max_iter=3000).fit(scaled, y, sample_weight=weights * len(y) / weights.sum())
    return LinearModel(
        features=FEATURES,
        center=_rounded(center),
        scale=_rounded(scale),
        weights=_rounded(model.coef_[0]),
        bias=round(float(model.intercept_[0]), 5),
    )


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def by_model(model: LinearModel) -> Score:
    """Scores of a fitted model."""
    return lambda one: [model.probability(features) for features in one.features]


ORDERS: dict[str, Score] = {
    "fused order": lambda one: [hit.score for hit in one.hits],
    "nearest sentence": lambda one: [features["nearest"] for features in one.features],
    # Cosines of this embedder differ by hundredths where fused scores differ by tenths.
    "fused + nearest sentence": lambda one: [
        hit.score + 4 * features["nearest"] for hit, features in zip(one.hits, one.features, strict=True)
    ],
}


def figures(cases: Sequence[Candidates], score: Score) -> list[dict[str, float]]:
    """Metrics of each case in the order of a score."""
    return [one.ranked(score(one)).figures() for one in cases]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, fit, and store where asked."""
    parser = argparse.ArgumentParser(prog="python -m optimize.rerank_fit")
    parser.add_argument("--write", action="store_true", help="store the fitted combination")
    arguments = parser.parse_args(argv)
    with eval_stores() as (searcher, embedder, gold):
        similarity = Similarity(embedder)
        cases = [case for case in load_question_cases() if case.gold]
        everything = asyncio.run(collect(searcher, cases, gold, similarity))
    split = {name: [one for one in everything if one.case.split == name] for name in ("train", "dev", "test")}

    def on_dev(strength: float) -> float:
        found = figures(split["dev"], by_model(fit(split["train"], strength)))
        return float(np.mean([one["recall@5"] + one["ndcg@5"] for one in found]))

    strength = max(STRENGTHS, key=on_dev)
    orders = {**ORDERS, f"fitted combination (C={strength})": by_model(fit(split["train"], strength))}
    for part in ("dev", "test"):
        groups = [one.case.group for one in split[part]]
        base = figures(split[part], ORDERS["fused order"])
        titles = [f"order, {part} ({len(groups)})", "recall@3", "recall@5", "nDCG@5", "MRR", "gain in recall@5"]
        sys.stdout.write(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|\n")
        for name, score in orders.items():
            found = figures(split[part], score)
            cells = []
            for key in ("recall@3", "recall@5", "ndcg@5", "mrr"):
                mean, low, high = interval([one[key] for one in found], groups)
                cells.append(f"{mean:.3f} [{low:.3f}, {high:.3f}]")
            gain = paired_gain([one["recall@5"] for one in base], [one["recall@5"] for one in found], groups)
            cells.append(f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]")
            sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")
    model = fit(split["train"] + split["dev"], strength)
    for name, weight in sorted(zip(FEATURES, model.weights, strict=True), key=lambda pair: -abs(pair[1])):
        sys.stdout.write(f"  {name:16} {weight:+.2f}\n")
    if arguments.write:
        test = figures(split["test"], by_model(model))
        groups = [one.case.group for one in split["test"]]
        state = CombinationState(
            embedder=embedder.name,
            model=model,
            card={
                "cases": len(split["train"]) + len(split["dev"]),
                "data": hashlib.sha256((FOLDER / "qa.jsonl").read_bytes()).hexdigest()[:16],
                "strength": strength,
                "test_recall@5": interval([one["recall@5"] for one in test], groups),
            },
        )
        DEFAULT_PATH.write_text(state.model_dump_json(indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"written: {DEFAULT_PATH.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
