"""Three judges, each ending in a `Verdict`. A verdict cannot fail open.

The score is the language model's probability of 是 against 否 at the token where it decides; where the
compiled state knows this language model, a fitted model weighs it together with what can be seen without
one (`programs.features`). A reply that cannot be used is asked for once more, differently; then a check
without a language model stands in and says so; only where that has nothing to say either, the verdict
is UNKNOWN, which never passes.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import dspy
from pydantic import Field

from programs import background, evidence
from programs.decisions import reaches
from programs.errors import LanguageModelError
from programs.features import grounding_features, relevance_features, utility_features
from programs.lm import ask
from programs.logprobs import value_tokens
from programs.module import AsyncModule, Resources
from programs.prompting import passage_of, render_passages
from programs.similarity import Similarity
from programs.weighing import JudgeState, log_odds
from signatures.judging import JudgeGrounding, JudgeRelevance, JudgeUtility
from signatures.records import Hit, Passage, Verdict
from signatures.vocabulary import NO, YES, FailureKind, JudgeName, Label

_LOGPROBS = {"logprobs": True, "top_logprobs": 10}
_REPAIRABLE: tuple[FailureKind, ...] = ("parse", "empty", "truncated")
_ENTRY = re.compile(rf"(\d+)\s*[:：.、]?\s*({YES}|{NO})")
Opinion = list[float | None]
"""What the language model alone says: its probability of 是 for each label, None where it gave none."""
_heard: ContextVar[list[Opinion] | None] = ContextVar("adaptive_rag_heard", default=None)


@contextmanager
def hearing() -> Iterator[list[Opinion]]:
    """Collect the language model's own opinions in the block, before evidence is weighed."""
    opinions: list[Opinion] = []
    token = _heard.set(opinions)
    try:
        yield opinions
    finally:
        _heard.reset(token)


def label_probabilities(prediction: dspy.Prediction, field: str = "verdict") -> list[float]:
    """Probability of 是 at each place of a field where the model wrote 是 or 否, in order.

    Token probabilities are those before any grammar, so both labels are among the alternatives.
    Empty when the endpoint gives no log-probabilities.
    """
    found = []
    for token in value_tokens(getattr(prediction, "logprobs", None), field):
        if _label(token["token"]) is None:
            continue
        mass: dict[Label, float] = {YES: 0.0, NO: 0.0}
        for option in token.get("top_logprobs") or [token]:
            label = _label(option["token"])
            if label is not None:
                mass[label] += math.exp(option["logprob"])
        if sum(mass.values()) > 0:
            found.append(mass[YES] / (mass[YES] + mass[NO]))
    return found


def _label(token: str) -> Label | None:
    stripped = token.strip(" \"'0123456789:：，,{}[]")
    return next((label for label in (YES, NO) if label == stripped), None)


class _Judge(AsyncModule):
    """What the judges share: one predictor, one threshold, one repair."""

    name: JudgeName

    def __init__(self, resources: Resources, signature: type[dspy.Signature]) -> None:
        super().__init__()
        self.judge = dspy.Predict(signature)
        self.resources = resources

    @property
    def threshold(self) -> float:
        return self.resources.thresholds[self.name]

    @property
    def _state(self) -> JudgeState | None:
        return self.resources.judges.get(self.name) if self.resources.similarity is not None else None

    async def _features(self, extract: Callable[[Similarity], Any]) -> Any:
        """What `extract` gives, off the loop; None where this judge weighs nothing."""
        similarity = self.resources.similarity
        if similarity is None or self._state is None:
            return None
        return await background.in_thread(partial(extract, similarity))

    async def _ask(self, **inputs: Any) -> dspy.Prediction:
        lm = self.resources.lms["judge"]
        try:
            return await ask(self.judge, lm, role="judge", config=_LOGPROBS, **inputs)
        except LanguageModelError as error:
            if error.kind not in _REPAIRABLE:
                raise
            # The same request would give the same reply at temperature 0.
            return await ask(self.judge, lm, role="judge", config={**_LOGPROBS, "temperature": 0.5}, **inputs)

    def _report(self, opinion: Opinion) -> Opinion:
        heard = _heard.get()
        if heard is not None:
            heard.append(opinion)
        return opinion

    def _score(self, reply: dspy.Prediction) -> float:
        """The language model's own probability of 是."""
        probabilities = label_probabilities(reply)
        score = probabilities[0] if probabilities else float(reply.verdict == YES)
        self._report([score])
        return score

    def _verdict(self, score: float | None, reason: str, **more: Any) -> dspy.Prediction:
        passed = reaches(score, self.threshold)
        verdict = Verdict(judge=self.name, score=score, passed=passed, reason=reason, **more)
        return dspy.Prediction(verdict=verdict, score=score, passed=passed, reason=reason)

    def _labelled(
        self, reply: dspy.Prediction, features: Mapping[str, float] | None, seen: Mapping[str, float]
    ) -> dspy.Prediction:
        score = self._score(reply)
        reason = reply.reason.strip()
        if self._state is None or features is None:
            return self._verdict(score, reason, evidence=dict(seen))
        weighed = self._state.weighed.probability({**features, "lm": log_odds(score)})
        if (weighed >= self.threshold) != (score >= 0.5):
            # The sentence would contradict the verdict.
            reason = f"语言模型的判断是“{YES if score >= 0.5 else NO}”，与其他依据合起来不成立（{reason}）"
        return self._verdict(weighed, reason, evidence={**seen, **features, "lm": score})

    def _alone(self, features: Mapping[str, float]) -> float | None:
        """Probability without a language model; None where it would be a guess."""
        assert self._state is not None
        probability = self._state.alone.probability(features)
        return None if self._state.low < probability < self._state.high else probability


class RelevanceJudge(_Judge):
    """Which passages hold what the question needs; the verdict's score is the best passage's."""

    name: JudgeName = "relevance"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, JudgeRelevance)

    async def aforward(self, *, question: str, passages: Sequence[Passage | Hit | str]) -> dspy.Prediction:
        """Judge passages.

        Args:
            question: The question.
            passages: Passages, hits or bare texts; empty gives score 0 without a call.

        Returns:
            `verdict` (with `passage_scores` by passage id), `score`, `passed`, `reason`.
        """
        items = [passage_of(item) for item in passages]
        if not items:
            return self._verdict(0.0, "没有检索到任何资料", source="rule")
        features = await self._features(lambda near: relevance_features(question, items, near))
        try:
            scores = await self.opinion(question=question, passages=items)
        except LanguageModelError as error:
            return self._without_lm(question, items, features, error)
        if self._state is not None and features is not None:
            weigh = self._state.weighed.probability
            scores = [
                self._alone(own) if score is None else weigh({**own, "lm": log_odds(score)})
                for own, score in zip(features, scores, strict=True)
            ]
        return self._combined(items, scores)

    async def opinion(self, *, question: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says of each passage.

        Raises:
            LanguageModelError: No usable reply.
        """
        items = [passage_of(item) for item in passages]
        signature = _numbered(self.judge.signature, len(items))
        reply = await self._ask(passages=render_passages(items), question=question, signature=signature)
        labels = aligned_labels(reply.verdicts, len(items))
        probabilities = label_probabilities(reply, "verdicts")
        scores: Opinion = [None if label is None else float(label == YES) for label in labels]
        if len(probabilities) == len(items) and None not in labels:
            scores = list(probabilities)
        return self._report(scores)

    def _without_lm(
        self, question: str, items: list[Passage], features: list[dict[str, float]] | None, error: LanguageModelError
    ) -> dspy.Prediction:
        if features is not None:
            scores = [self._alone(own) for own in features]
        else:
            overlaps = [evidence.term_overlap(question, f"{p.heading}\n{p.text}") for p in items]
            # Shared words are a sign; that there are few is none, as the right passage may use others.
            scores = [overlap if overlap >= self.threshold else None for overlap in overlaps]
        return self._combined(items, scores, source="check", error_kind=error.kind)

    def _combined(self, items: list[Passage], scores: list[float | None], **more: Any) -> dspy.Prediction:
        known = [score for score in scores if score is not None]
        best = max(known) if known else None
        kept = sum(score >= self.threshold for score in known)
        reason = f"{len(items)} 段资料中有 {kept} 段与问题相关" if known else "相关性判断没有可用的结果"
        by_id = {item.id: score for item, score in zip(items, scores, strict=True)}
        return self._verdict(best, reason, passage_scores=by_id, **more)


class GroundingJudge(_Judge):
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
            reply = await self._ask(passages=render_passages(items), question=question, answer=answer)
        except LanguageModelError as error:
            return self._checked(found, features, error.kind)
        return self._labelled(reply, features, found.features)

    async def opinion(self, *, question: str, answer: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says, also where a rule would decide without it.

        Raises:
            LanguageModelError: No usable reply.
        """
        items = [passage_of(item) for item in passages]
        reply = await self._ask(passages=render_passages(items), question=question, answer=answer)
        return [self._score(reply)]

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


class UtilityJudge(_Judge):
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
            reply = await self._ask(question=question, answer=evidence.strip_citations(answer))
        except LanguageModelError as error:
            # Without fitted features, whether a text answers a question cannot be checked from its words.
            score = None if features is None else self._alone(features)
            reason = "语言模型没有给出判断" if score is None else "没有语言模型的判断，由用词和形式得出"
            source: Any = "lm" if score is None else "check"
            return self._verdict(score, reason, source=source, error_kind=error.kind)
        return self._labelled(reply, features, {})

    async def opinion(self, *, question: str, answer: str) -> Opinion:
        """What the language model alone says, also where a rule would decide without it.

        Raises:
            LanguageModelError: No usable reply.
        """
        reply = await self._ask(question=question, answer=evidence.strip_citations(answer))
        return [self._score(reply)]


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


def _numbered(signature: type[dspy.Signature], count: int) -> type[dspy.Signature]:
    """The signature with a pattern that asks for exactly one label for each of `count` passages."""
    pattern = "^" + " ".join(f"{n}({YES}|{NO})" for n in range(1, count + 1)) + "$"
    field = signature.output_fields["verdicts"]
    extra = dict(field.json_schema_extra or {})
    numbered: type[dspy.Signature] = signature.delete("verdicts").append(
        "verdicts", Field(pattern=pattern, json_schema_extra=extra), str
    )
    return numbered


def aligned_labels(text: str, count: int) -> list[str | None]:
    """Label of each passage by its number; None where it is missing or contradicts itself."""
    labels: list[set[str]] = [set() for _ in range(count)]
    for number, label in _ENTRY.findall(text):
        if 1 <= int(number) <= count:
            labels[int(number) - 1].add(label)
    return [next(iter(found)) if len(found) == 1 else None for found in labels]
