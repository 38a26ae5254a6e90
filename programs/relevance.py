"""The relevance judge: which passages hold what the question needs, all of a search in one call."""

from collections.abc import Mapping, Sequence

import dspy

from programs import evidence
from programs.errors import LanguageModelError
from programs.features import relevance_features
from programs.judge_base import Judge, Said
from programs.labels import aligned_labels, label_probabilities, numbered
from programs.module import Resources
from programs.opinions import Kept, Opinion, report
from programs.prompting import passage_of, render_passages
from programs.weighing import log_odds
from signatures.judging import JudgeRelevance
from signatures.records import Hit, Passage
from signatures.vocabulary import YES, JudgeName


class RelevanceJudge(Judge):
    """Which passages hold what the question needs; the verdict's score is the best passage's."""

    name: JudgeName = "relevance"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources, JudgeRelevance)

    async def aforward(
        self,
        *,
        question: str,
        passages: Sequence[Passage | Hit | str],
        known: Mapping[str, float | None] | None = None,
    ) -> dspy.Prediction:
        """Judge passages.

        Args:
            question: The question.
            passages: Passages, hits or bare texts; empty gives score 0 without a call.
            known: Scores by passage id that earlier hops of the same request ended with; they stand.

        Returns:
            `verdict` (with `passage_scores` by passage id), `score`, `passed`, `reason`.
        """
        items = [passage_of(item) for item in passages]
        if not items:
            return self._verdict(0.0, "没有检索到任何资料", source="rule")
        scores = {item.id: known[item.id] for item in items if item.id in known} if known else {}
        # What could not be judged is asked again.
        scores = {one: score for one, score in scores.items() if score is not None}
        left = [item for item in items if item.id not in scores]
        if not left:
            return self._combined(items, scores, cached=True)
        features = await self._features(lambda near: relevance_features(question, items, near))
        seen = {} if features is None else {item.id: one for item, one in zip(items, features, strict=True)}
        try:
            said = await self._asked(question, left)
        except LanguageModelError as error:
            for item in left:
                scores[item.id] = self._checked(question, item, seen.get(item.id))
            return self._combined(items, scores, source="check", error_kind=error.kind)
        for item, score in zip(left, said.scores, strict=True):
            scores[item.id] = self._score(score, seen.get(item.id) if said.fitted else None)
        return self._combined(items, scores, cached=said.cached)

    async def opinion(self, *, question: str, passages: Sequence[Passage | Hit | str]) -> Opinion:
        """What the language model alone says of each passage.

        Raises:
            LanguageModelError: No usable reply.
        """
        return list((await self._asked(question, [passage_of(item) for item in passages])).scores)

    async def _asked(self, question: str, items: Sequence[Passage]) -> Said:
        """What the language model says of passages that it sees together: one may change what it says of another."""
        shown = [question, *(text for item in items for text in (item.heading, item.text))]
        if (known := self._known(*shown)) is not None:
            return known
        signature = numbered(self.judge.signature, len(items))
        reply = await self._ask(passages=render_passages(items), question=question, signature=signature)
        labels = aligned_labels(reply.prediction.verdicts, len(items))
        probabilities = label_probabilities(reply.prediction, "verdicts")
        scores = [None if label is None else float(label == YES) for label in labels]
        if len(probabilities) == len(items) and None not in labels:
            scores = list(probabilities)
        report(scores)
        whole = tuple(score for score in scores if score is not None)
        if len(whole) == len(items):
            self._keep(reply, Kept(whole), *shown)
        return Said(tuple(scores), "", cached=False, fitted=reply.by == self._identity)

    def _score(self, score: float | None, features: Mapping[str, float] | None) -> float | None:
        """A passage's score from what the language model said of it, beside what can be seen without one."""
        if self._state is None or features is None:
            return score
        if score is None:
            return self._alone(features)
        return self._state.weighed.probability({**features, "lm": log_odds(score)})

    def _checked(self, question: str, item: Passage, features: Mapping[str, float] | None) -> float | None:
        """A passage's score where the language model said nothing."""
        if self._state is not None and features is not None:
            return self._alone(features)
        overlap = evidence.term_overlap(question, f"{item.heading}\n{item.text}")
        # Shared words are a sign; that there are few is none, as the right passage may use others.
        return overlap if overlap >= self.threshold else None

    def _combined(
        self, items: Sequence[Passage], scores: Mapping[str, float | None], **more: object
    ) -> dspy.Prediction:
        known = [score for item in items if (score := scores[item.id]) is not None]
        best = max(known) if known else None
        kept = sum(score >= self.threshold for score in known)
        reason = f"{len(items)} 段资料中有 {kept} 段与问题相关" if known else "相关性判断没有可用的结果"
        by_id = {item.id: scores[item.id] for item in items}
        return self._verdict(best, reason, passage_scores=by_id, **more)
