"""`make bench-layout`: what the order of a prompt costs where the endpoint keeps the beginning of the last one.

The same hop, relevance judge, generator and grounding judge on the same passages, with the program's layout
(passages first, then instructions and inputs) and with the usual one (instructions first, passages among the
inputs), in turn. Counted is what the endpoint evaluated: prompt tokens that were not in its prefix cache.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize.gold import GoldPassages, sample_passages
from optimize.metrics import facts_present
from optimize.statistics import interval
from programs import background, budget, lm
from programs.adapter import FieldAdapter
from programs.errors import LanguageModelError
from programs.judges import Judges
from programs.module import Resources
from programs.prompting import render_passages
from programs.self_rag import SelfRAG
from signatures import wording
from signatures.records import Passage

SHOWN = 5


class InstructionsFirst(FieldAdapter):
    """The usual layout: instructions as system, all inputs behind them."""

    def format(self, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Messages of a prompt without a place of its own for passages."""
        with mock.patch.object(wording, "PASSAGES_FIELD", "no such field"):
            return super().format(signature, demos, inputs)


LAYOUTS: dict[str, Callable[[], FieldAdapter]] = {
    "passages first": FieldAdapter,
    "instructions first": InstructionsFirst,
}


def shown(case: QuestionCase, gold: GoldPassages) -> list[Passage]:
    """What a search would have found: what answers, among what shares words with the question."""
    held = list({passage.id: passage for passage in map(gold.find, case.gold)}.values())
    near = gold.near(case.question, "corpus/", without=[passage.id for passage in held], count=SHOWN)
    return [near[0], *held, *near[1:]][:SHOWN]


async def hop(
    judges: Judges, rag: SelfRAG, case: QuestionCase, passages: list[Passage], held: set[str]
) -> dict[str, float]:
    """One hop; what was right in it, where `held` are the ids of the passages that answer."""
    right: dict[str, float] = {}
    said = await judges.relevance.opinion(question=case.question, passages=passages)
    labels = [score is not None and (score >= 0.5) == (p.id in held) for p, score in zip(passages, said, strict=True)]
    right["relevance labels"] = fmean(labels)
    written = await rag._generate(case.question, tuple(passages))
    right["facts told"] = fmean(facts_present(case, written.answer))
    opinion = await judges.grounding.opinion(question=case.question, answer=case.answer, passages=passages)
    right["right answer grounded"] = float((opinion[0] or 0.0) >= 0.5)
    return right


def measure(resources: Resources, cases: list[QuestionCase], gold: GoldPassages) -> dict[str, dict[str, list[float]]]:
    """By layout: a list of values for each figure, one a question."""
    judges, rag = Judges(resources), SelfRAG(resources)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in LAYOUTS}
    for number, case in enumerate(cases):
        passages, held = shown(case, gold), {gold.find(one).id for one in case.gold}
        # Which goes first changes, so that neither always finds the other's leftovers.
        for name in sorted(LAYOUTS, reverse=bool(number % 2)):
            account, started = budget.Budget(), time.monotonic()
            with mock.patch.object(lm, "_ADAPTER", LAYOUTS[name]()), budget.spending(account):
                try:
                    right = background.run(hop(judges, rag, case, passages, held))
                except LanguageModelError as error:
                    Console(stderr=True).print(f"{case.id}, {name}: {error}")
                    continue
            usage = account.usage()
            figures = found[name]
            figures["prompt tokens"].append(usage.prompt_tokens)
            figures["evaluated tokens"].append(usage.prompt_tokens - usage.cached_tokens)
            figures["seconds"].append(time.monotonic() - started)
            figures["characters of passages"].append(len(render_passages(passages)))
            for figure, value in right.items():
                figures[figure].append(value)
        Console(stderr=True).print(f"{number + 1}/{len(cases)} {resources.lms.identity('judge')}")
    return found


def main() -> None:
    """Print the table."""
    from programs.build import build_resources, uncompiled
    from programs.settings import load_settings

    parser = argparse.ArgumentParser(prog="make bench-layout")
    parser.add_argument("--limit", type=int, default=12, help="questions")
    arguments = parser.parse_args()
    resources = uncompiled(build_resources(load_settings()))
    wanted = [c for c in load_question_cases() if c.split == "dev" and c.answerable and c.intent != "CODE_SEARCH"]
    cases = wanted[:: max(1, len(wanted) // arguments.limit)][: arguments.limit]
    found = measure(resources, cases, sample_passages())
    table = Table("figure, mean of a hop", *LAYOUTS, title=f"{len(cases)} questions, {SHOWN} passages")
    for figure in next(iter(found.values())):
        cells = []
        for values in found.values():
            value, low, high = interval(values[figure], [str(place) for place in range(len(values[figure]))])
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]")
        table.add_row(figure, *cells)
    Console(width=120).print(table)
    resources.close()


if __name__ == "__main__":
    main()
