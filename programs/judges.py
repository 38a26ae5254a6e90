"""Three judges, each ending in a `Verdict`. A verdict cannot fail open.

The score is the language model's probability of 是 against 否 at the token where it decides; where the
compiled state knows this language model, a fitted model weighs it together with what can be seen without
one (`programs.features`). A reply that cannot be used is asked for once more, differently; then a check
without a language model stands in and says so; only where that has nothing to say either, the verdict
is UNKNOWN, which never passes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from programs import evidence
from programs.errors import LanguageModelError
from programs.features import grounding_features, utility_features
from programs.judge_base import Judge, Said
from programs.module import Resources
from programs.opinions import Opinion
from programs.prompting import passage_of, render_passages
from programs.relevance import RelevanceJudge
from signatures.judging import JudgeGrounding, JudgeUtility
from signatures.records import Hit, Passage, Verdict
from signatures.vocabulary import FailureKind, JudgeName

__all__ = ["GroundingJudge", "Judges", "RelevanceJudge", "UtilityJudge"]


class GroundingJudge(Judge):
    """Whether everything in an answer follows from the passages."""

    name: JudgeName = "grounding"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, JudgeGrounding)

    async def aforward(self, *, question: str, answer: str, passages: Sequence[Passage | Hit | str]) -> dspy.Prediction:
        """Judge an answer against passages.

        No passages, no answer or a refusal score 0 by rule. A number that neither passages nor
        question hold fails the answer without asking a language model.

        Returns:
            `verdict`, `score`, `passed`, `reason`.
        """
        items = [passage_of(item) for item in passages]
        if not items:
            return self._verdict(0.0, "没有资料，答案没有依据", source="rule")
        if not answer.strip() or evidence.is_refusal(answer):
            return self._verdict(0.0, "没有给出答案", source="rule")
        found = evidence.support(answer, items, question)
        if found.missing_numbers:
            reason = f"资料里没有这些数字：{'、'.join(found.missing_numbers[:5])}"
            return self._verdict(0.0, reason, source="check", evidence=found.features)
        features = await self._features(lambda near: grounding_features(question, answer, items, near))
        try:
            opinion = await self._asked(question, answer, items)
        except LanguageModelError as error:
            return self._checked(found, features, error.kind)
        return self._weighed(opinion, features, found.features)

    async def opinion(self, *, question: str, answer: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says, also where a rule would decide without it.

        Raises:
            LanguageModelError: No usable reply.
        """
        said = await self._asked(question, answer, [passage_of(item) for item in passages])
        return list(said.scores)

    async def _asked(self, question: str, answer: str, items: Sequence[Passage]) -> Said:
        shown = [text for item in items for text in (item.heading, item.text)]
        return await self._opinion(
            question, answer, *shown, passages=render_passages(items), question=question, answer=answer
        )

    def _checked(
        self, found: evidence.Support, features: Mapping[str, float] | None, kind: FailureKind
    ) -> dspy.Prediction:
        """The stand-in: a clear yes or no, or UNKNOWN in between."""
        score: float | None = None
        reason = "语言模型没有给出判断，逐字核对也不能确定"
        if features is not None:
            score = self._alone(features)
            reason = reason if score is None else "没有语言模型的判断，由逐字核对和语义相近程度得出"
        elif found.missing_names or found.negation > 0 or found.overlap < 0.4:
            score, reason = 0.0, "逐字核对：答案里有资料中找不到的内容"
        elif found.overlap >= 0.9:
            score, reason = 1.0, "逐字核对：答案的内容都在资料里"
        return self._verdict(score, reason, source="check", error_kind=kind, evidence=found.features)


class UtilityJudge(Judge):
    """Whether an answer answers the question."""

    name: JudgeName = "utility"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, JudgeUtility)

    async def aforward(self, *, question: str, answer: str) -> dspy.Prediction:
        """Judge an answer; an empty one or a refusal scores 0 by rule.

        Returns:
            `verdict`, `score`, `passed`, `reason`.
        """
        if not answer.strip() or evidence.is_refusal(answer):
            return self._verdict(0.0, "没有给出答案", source="rule")
        features = await self._features(lambda near: utility_features(question, answer, near))
        try:
            opinion = await self._asked(question, answer)
        except LanguageModelError as error:
            # Without fitted features, whether a text answers a question cannot be checked from its words.
            score = None if features is None else self._alone(features)
            reason = "语言模型没有给出判断" if score is None else "没有语言模型的判断，由用词和形式得出"
            source: Any = "lm" if score is None else "check"
            return self._verdict(score, reason, source=source, error_kind=error.kind)
        return self._weighed(opinion, features, {})

    async def opinion(self, *, question: str, answer: str) -> Opinion:
        """What the language model alone says, also where a rule would decide without it.

        Raises:
            LanguageModelError: No usable reply.
        """
        return list((await self._asked(question, answer)).scores)

    async def _asked(self, question: str, answer: str) -> Said:
        plain = evidence.strip_citations(answer)
        return await self._opinion(question, plain, question=question, answer=plain)


class Judges(dspy.Module):
    """The three judges by name; `grounding` and `utility` of one answer can run side by side."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.relevance = RelevanceJudge(resources)
        self.grounding = GroundingJudge(resources)
        self.utility = UtilityJudge(resources)

    async def answer(self, question: str, answer: str, passages: Sequence[Passage]) -> tuple[Verdict, Verdict]:
        """Grounding and utility of one answer, judged at the same time."""
        grounding, utility = await asyncio.gather(
            self.grounding.acall(question=question, answer=answer, passages=passages),
            self.utility.acall(question=question, answer=answer),
        )
        return grounding.verdict, utility.verdict
