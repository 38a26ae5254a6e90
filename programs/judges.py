"""Three judges, each ending in a `Verdict`. A verdict cannot fail open.

The score is the language model's probability of 是 against 否 at the token where it decides; where the
compiled state knows this language model, a fitted model weighs it together with what can be seen without
one (`programs.features`). A reply that cannot be used is asked for once more, differently; then a check
without a language model stands in and says so; only where that has nothing to say either, the verdict
is UNKNOWN, which never passes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import dspy

from programs import background, evidence
from programs.decisions import reaches
from programs.errors import LanguageModelError
from programs.features import grounding_features, relevance_features, utility_features
from programs.labels import aligned_labels, label_probabilities, numbered
from programs.lm import ask
from programs.module import AsyncModule, Resources
from programs.opinions import Opinion, OpinionCache, judge_key, report
from programs.prompting import passage_of, render_passages
from programs.similarity import Similarity
from programs.weighing import JudgeState, log_odds
from signatures.judging import JudgeGrounding, JudgeRelevance, JudgeUtility
from signatures.records import Hit, Passage, Verdict
from signatures.vocabulary import NO, YES, FailureKind, JudgeName

_LOGPROBS = {"logprobs": True, "top_logprobs": 10}
_REPAIRABLE: tuple[FailureKind, ...] = ("parse", "empty", "truncated")


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

    @property
    def _identity(self) -> str:
        return judge_key(self.name, self.judge, self.resources.lms.identity("judge"))

    async def _opinion(self, *asked: str, **inputs: Any) -> tuple[float, str, bool]:
        """The language model's probability of 是, its reason, and whether both were known without a call.

        Args:
            asked: What the opinion depends on.
            inputs: The signature's.

        Raises:
            LanguageModelError: No usable reply.
        """
        key = OpinionCache.key(self._identity, *asked)
        known = self.resources.opinions.get(key)
        if known is not None:
            return *known, True
        reply = await self._ask(**inputs)
        probabilities = label_probabilities(reply)
        score = probabilities[0] if probabilities else float(reply.verdict == YES)
        report([score])
        reason = reply.reason.strip()
        self.resources.opinions.put(key, score, reason)
        return score, reason, False

    def _verdict(self, score: float | None, reason: str, **more: Any) -> dspy.Prediction:
        passed = reaches(score, self.threshold)
        verdict = Verdict(judge=self.name, score=score, passed=passed, reason=reason, **more)
        return dspy.Prediction(verdict=verdict, score=score, passed=passed, reason=reason)

    def _weighed(
        self,
        opinion: tuple[float, str, bool],
        features: Mapping[str, float] | None,
        seen: Mapping[str, float],
    ) -> dspy.Prediction:
        score, reason, cached = opinion
        if self._state is None or features is None:
            return self._verdict(score, reason, cached=cached, evidence=dict(seen))
        weighed = self._state.weighed.probability({**features, "lm": log_odds(score)})
        if (weighed >= self.threshold) != (score >= 0.5):
            # The sentence would contradict the verdict.
            reason = f"语言模型的判断是“{YES if score >= 0.5 else NO}”，与其他依据合起来不成立（{reason}）"
        return self._verdict(weighed, reason, cached=cached, evidence={**seen, **features, "lm": score})

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
        identity = self._identity
        keys = [OpinionCache.key(identity, question, item.heading, item.text) for item in items]
        known = [self.resources.opinions.get(key) for key in keys]
        scores: Opinion = [None if one is None else one[0] for one in known]
        missing = [place for place, one in enumerate(known) if one is None]
        failed: LanguageModelError | None = None
        if missing:
            try:
                found = await self.opinion(question=question, passages=[items[place] for place in missing])
            except LanguageModelError as error:
                failed = error
            else:
                for place, score in zip(missing, found, strict=True):
                    scores[place] = score
                    if score is not None:
                        self.resources.opinions.put(keys[place], score)
        scores = [
            self._score(question, item, None if features is None else features[place], score, failed is not None)
            for place, (item, score) in enumerate(zip(items, scores, strict=True))
        ]
        if failed is not None:
            return self._combined(items, scores, source="check", error_kind=failed.kind)
        return self._combined(items, scores, cached=not missing)

    async def opinion(self, *, question: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says of each passage.

        Raises:
            LanguageModelError: No usable reply.
        """
        items = [passage_of(item) for item in passages]
        signature = numbered(self.judge.signature, len(items))
        reply = await self._ask(passages=render_passages(items), question=question, signature=signature)
        labels = aligned_labels(reply.verdicts, len(items))
        probabilities = label_probabilities(reply, "verdicts")
        scores: Opinion = [None if label is None else float(label == YES) for label in labels]
        if len(probabilities) == len(items) and None not in labels:
            scores = list(probabilities)
        return report(scores)

    def _score(
        self, question: str, item: Passage, features: Mapping[str, float] | None, score: float | None, failed: bool
    ) -> float | None:
        """A passage's score from what the language model said of it, or from what can be seen without one."""
        if self._state is not None and features is not None:
            if score is None:
                return self._alone(features)
            return self._state.weighed.probability({**features, "lm": log_odds(score)})
        if score is not None or not failed:
            return score
        overlap = evidence.term_overlap(question, f"{item.heading}\n{item.text}")
        # Shared words are a sign; that there are few is none, as the right passage may use others.
        return overlap if overlap >= self.threshold else None

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
            opinion = await self._asked(question, answer, items)
        except LanguageModelError as error:
            return self._checked(found, features, error.kind)
        return self._weighed(opinion, features, found.features)

    async def opinion(self, *, question: str, answer: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says, also where a rule would decide without it.

        Raises:
            LanguageModelError: No usable reply.
        """
        return [(await self._asked(question, answer, [passage_of(item) for item in passages]))[0]]

    async def _asked(self, question: str, answer: str, items: Sequence[Passage]) -> tuple[float, str, bool]:
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
        return [(await self._asked(question, answer))[0]]

    async def _asked(self, question: str, answer: str) -> tuple[float, str, bool]:
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
