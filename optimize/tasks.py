"""What is compiled: a student, its cases by split, and the metric as every optimizer of DSPy calls it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import dspy

from data.schema import Case, RelevanceCase, RewriteCase
from optimize import metrics
from optimize.eval_retrieval import eval_stores
from optimize.examples import Component, chosen, demonstration, example, generator_passages, load_component
from optimize.gold import GoldPassages, sample_passages
from optimize.students import Desk, build_student
from programs import background, budget
from programs.labels import aligned_labels
from programs.module import Resources
from programs.prompting import neutralise
from programs.retrieval.plan import RetrievalPlan
from programs.strategies import resolve_strategy
from signatures.vocabulary import YES

GOOD: Mapping[Component, float] = {
    "router": 0.8,
    "relevance": 1.0,
    "grounding": 1.0,
    "utility": 1.0,
    "generator": 0.85,
    "rewriter": 0.5,
    "program": 0.6,
}
"""Score from which a case may stand in a prompt as a demonstration."""
_NUMBERED = re.compile(r"(?m)^\[(\d+)\] ")
SEARCHES: tuple[Component, ...] = ("rewriter", "program")
"""Components whose metric or module searches the sample knowledge base."""


@dataclass
class Task:
    """See the module's text.

    Attributes:
        component: Which.
        desk: What students share.
        train, dev, test: Examples, the strata in turn.
        labelled: Train cases as demonstrations, those whose right outputs satisfy the metric.
    """

    component: Component
    desk: Desk
    train: list[dspy.Example]
    dev: list[dspy.Example]
    test: list[dspy.Example]
    labelled: list[dspy.Example]
    _found: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @property
    def good(self) -> float:
        """Score from which a case may be a demonstration."""
        return GOOD[self.component]

    def student(self) -> dspy.Module:
        """A new student with the prompt as it is written."""
        return build_student(self.component, self.desk)

    def metric(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        """Score and feedback of a prediction on an example, the same for every predictor."""
        return self._score(self.desk.cases[gold.id], pred)

    def number(self, gold: Any, pred: Any, trace: Any = None) -> float:
        """The score alone, for optimizers that read nothing else.

        While they collect demonstrations (with a trace), what was written must be right as well, not only
        what its probabilities said.
        """
        result = float(self.metric(gold, pred).score)
        if trace and self.component != "program":
            written = {**trace[-1][1], **dict(trace[-1][2].items())}
            result = min(result, float(self.demo_score(self.desk.cases[gold.id], written).score))
        return result

    def demo_score(self, case: Any, shown: Mapping[str, Any]) -> dspy.Prediction:
        """The metric on the outputs that a demonstration shows.

        Args:
            case: The case of the demonstration.
            shown: Its fields.
        """
        made: dict[str, Any] = dict(shown)
        match self.component:
            case "router":
                share = float(shown["confidence"]) / 100
                limit = self.desk.resources.settings.confidence_threshold
                made["strategy"] = resolve_strategy(
                    intent=shown["intent"], confidence=share, named=shown["strategy"], threshold=limit
                )
                made["confidence"] = share
            case "relevance":
                label = self._own_label(case, shown)
                made |= {"score": None if label is None else float(label == YES), "passed": label == YES}
            case "grounding" | "utility":
                made |= {"score": float(shown["verdict"] == YES), "passed": shown["verdict"] == YES}
        return self._score(case, dspy.Prediction(**made))

    def _own_label(self, case: RelevanceCase, shown: Mapping[str, Any]) -> str | None:
        text, passages = neutralise(self.desk.gold.shown(case.passage).text), str(shown["passages"])
        place = passages.find(text)
        # Marks of passages: their numbers count up, which other numbers in brackets do not.
        starts: list[int] = []
        for match in _NUMBERED.finditer(passages):
            if int(match[1]) == len(starts) + 1:
                starts.append(match.start())
        labels = aligned_labels(str(shown["verdicts"]), len(starts))
        number = sum(start <= place for start in starts)
        return labels[number - 1] if number else None

    def _score(self, case: Any, pred: Any) -> dspy.Prediction:
        if (broken := metrics.unusable(pred)) is not None:
            return broken
        match self.component:
            case "router":
                return metrics.route(case, pred)
            case "generator":
                return metrics.generator(case, pred.answer, generator_passages(case, self.desk.gold))
            case "rewriter":
                wanted = [self.desk.gold.find(one).id for one in case.gold]
                new, old = self._search(case, pred.query), self._search(case, case.failed_query)
                return metrics.rewriter(case, new, old, wanted)
            case "program":
                return metrics.program(case, pred.record)
        return metrics.judge(case, pred)

    def _search(self, case: RewriteCase, query: str) -> tuple[str, ...]:
        index: Any = "code" if case.gold[0].document_id.startswith("code/") else "documents"
        if (index, query) not in self._found:
            depth = metrics.DEPTH
            plan = RetrievalPlan(index=index, routes=("dense", "text"), top_k=depth, rough_top_k=20, rerank=False)
            with budget.spending(budget.Budget()):
                found = background.run(self.desk.resources.searcher.search([query], plan))
            if found.outages:
                raise RuntimeError(f"{case.id}: {found.degraded}")
            self._found[index, query] = tuple(hit.passage.id for hit in found.hits)
        return self._found[index, query]


@contextmanager
def open_task(
    component: Component,
    resources: Resources,
    *,
    limit: int | None,
    seed: int,
    clean: Callable[[Case], bool] = lambda _: True,
) -> Iterator[Task]:
    """The task of a component; holds the stores of the sample knowledge base open where it searches them.

    Args:
        component: Which.
        resources: Of the program, with the language models to use.
        limit: Most cases of each split; None for all.
        seed: Of the order of the cases.
        clean: Whether a case of train may be shown to an optimizer.

    Raises:
        DataError: The labelled cases are wrong, or a quote leads to no passage.
    """
    if component not in SEARCHES:
        yield make_task(component, resources, sample_passages(), limit=limit, seed=seed, clean=clean)
        return
    with eval_stores() as (searcher, _, gold):
        searching = replace(resources, searcher=searcher)
        yield make_task(component, searching, gold, limit=limit, seed=seed, clean=clean)


def make_task(
    component: Component,
    resources: Resources,
    gold: GoldPassages,
    *,
    limit: int | None,
    seed: int,
    clean: Callable[[Case], bool] = lambda _: True,
) -> Task:
    """As `open_task`, over stores that are open."""
    cases = load_component(component)
    desk = Desk(resources, gold, {case.id: case for case in cases})
    generating = component != "program"

    def examples(of: list[Case]) -> list[dspy.Example]:
        return [example(case, gold, generating=generating) for case in of]

    train = examples([case for case in chosen(cases, "train", None, seed) if clean(case)][:limit])
    dev, test = (examples(chosen(cases, split, limit, seed)) for split in ("dev", "test"))
    task = Task(component, desk, train, dev, test, [])
    if generating:
        shown = [(desk.cases[one.id], demonstration(desk.cases[one.id], gold)) for one in train]
        task.labelled = [demo for case, demo in shown if task.demo_score(case, demo).score >= task.good]
    return task
