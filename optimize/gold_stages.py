"""Stages of the program that are always right about one labelled question, to be swapped in one at a time.

`swapped` builds the real program with some of its stages replaced; everything else runs as it always does.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import dspy

from data.schema import QuestionCase
from optimize.gold import GoldPassages
from optimize.metrics import facts_present
from programs.adaptive_rag import AdaptiveRAG
from programs.build import compiled_program
from programs.judges import GroundingJudge, RelevanceJudge, UtilityJudge
from programs.module import Resources
from programs.prompting import passage_of
from programs.retrieval.base import Vector
from programs.retrieval.pipeline import Searcher, SearchResult
from programs.retrieval.plan import RetrievalPlan
from programs.router import Router
from programs.strategies import INTENT_STRATEGY
from signatures.records import Hit, Passage, RouteDecision

Stage = Literal["route", "passages", "verdicts"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which a question meets them; what is left after them is the answer's wording."""


class GoldRouter(Router):
    """Sends the question where it belongs."""

    def __init__(self, resources: Resources, case: QuestionCase) -> None:
        super().__init__(resources)
        self.case = case

    async def aforward(
        self, *, question: str, history: str = "", thinking: object = None, ask_back: bool = True
    ) -> dspy.Prediction:
        decision = RouteDecision(
            intent=self.case.intent,
            confidence=1.0,
            reasoning="gold",
            strategy=INTENT_STRATEGY.get(self.case.intent, "fallback"),
            source="user",
        )
        return dspy.Prediction(decision=decision)


class GoldSearcher(Searcher):
    """Finds the gold passages, whatever is searched.

    Args:
        real: Embeds queries for the router, as always.
        passages: What is found.
    """

    def __init__(self, real: Searcher, passages: Sequence[Passage]) -> None:
        super().__init__({}, real._embedder)
        self._real = real
        self._hits = tuple(Hit(passage=passage, score=1.0, routes=("gold",)) for passage in passages)

    async def query_vector(self, query: str) -> Vector:
        return await self._real.query_vector(query)

    async def search(self, queries: Sequence[str], plan: RetrievalPlan, **more: Any) -> SearchResult:
        return SearchResult(self._hits)


class GoldRelevance(RelevanceJudge):
    """Passes the gold passages."""

    def __init__(self, resources: Resources, gold: Collection[str]) -> None:
        super().__init__(resources)
        self.gold = gold

    async def aforward(self, *, question: str, passages: Sequence[Passage | Hit | str], **more: Any) -> dspy.Prediction:
        items = [passage_of(item) for item in passages]
        if not items:
            return self._verdict(0.0, "没有检索到任何资料", source="rule")
        return self._combined(items, {item.id: float(item.id in self.gold) for item in items}, source="rule")


class GoldGrounding(GroundingJudge):
    """Passes an answer that holds every fact."""

    def __init__(self, resources: Resources, case: QuestionCase) -> None:
        super().__init__(resources)
        self.case = case

    async def aforward(self, *, question: str, answer: str, **more: Any) -> dspy.Prediction:
        return self._verdict(float(holds_facts(self.case, answer)), "按标注判定", source="rule")


class GoldUtility(UtilityJudge):
    """As `GoldGrounding`."""

    def __init__(self, resources: Resources, case: QuestionCase) -> None:
        super().__init__(resources)
        self.case = case

    async def aforward(self, *, question: str, answer: str) -> dspy.Prediction:
        return self._verdict(float(holds_facts(self.case, answer)), "按标注判定", source="rule")


def holds_facts(case: QuestionCase, answer: str) -> bool:
    """Whether an answer holds every fact of a case; never where there is no answer."""
    return case.answerable and all(facts_present(case, answer))


def gold_of(case: QuestionCase, known: GoldPassages) -> list[Passage]:
    """The passages that hold the answer, without doubles.

    Raises:
        DataError: A quote of the case stands in no passage, or in several.
    """
    return list({(found := known.find(gold)).id: found for gold in case.gold}.values())


def swapped(
    resources: Resources, case: QuestionCase, gold: Sequence[Passage], stages: Collection[Stage]
) -> AdaptiveRAG:
    """The program with some stages right about `case`.

    Args:
        resources: Of the program as it runs.
        case: The question that will be asked.
        gold: Its passages.
        stages: What is replaced.
    """
    if "passages" in stages:
        resources = replace(resources, searcher=GoldSearcher(resources.searcher, gold))
    program = compiled_program(resources)
    if "route" in stages:
        program.router = GoldRouter(resources, case)
    if "verdicts" in stages:
        program.judges.relevance = GoldRelevance(resources, {passage.id for passage in gold})
        program.judges.grounding = GoldGrounding(resources, case)
        program.judges.utility = GoldUtility(resources, case)
    return program
