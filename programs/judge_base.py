"""What the three judges share: one predictor, one threshold, one repair, and how evidence is weighed."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import dspy

from programs import background
from programs.decisions import reaches
from programs.engine import answering
from programs.errors import LanguageModelError
from programs.labels import label_probabilities
from programs.lm import ask
from programs.module import AsyncModule, Resources
from programs.opinions import Kept, OpinionCache, judge_key, report
from programs.similarity import Similarity
from programs.weighing import JudgeState, log_odds
from signatures.records import Verdict
from signatures.vocabulary import NO, YES, FailureKind, JudgeName

_LOGPROBS = {"logprobs": True, "top_logprobs": 10}
_REPAIRABLE: tuple[FailureKind, ...] = ("parse", "empty", "truncated")


class Said(NamedTuple):
    """What a language model said of a case.

    Attributes:
        scores: Its probability of 是 for each label, in order; None where it gave none.
        reason: Its sentence.
        cached: Known without a call.
        fitted: It is the language model that the weights were fitted to; after a failover it is not.
    """

    scores: tuple[float | None, ...]
    reason: str
    cached: bool
    fitted: bool


class Reply(NamedTuple):
    """A judge's reply.

    Attributes:
        prediction: Its fields.
        by: Label of the endpoint that gave it.
        plain: It answers the request as it is, not the repaired one.
    """

    prediction: dspy.Prediction
    by: str
    plain: bool


class Judge(AsyncModule):
    """See the module's text."""

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

    @property
    def _identity(self) -> str:
        """Of the language model that is asked first."""
        return self.resources.lms.identity("judge")

    async def _features(self, extract: Callable[[Similarity], Any]) -> Any:
        """What `extract` gives, off the loop; None where this judge weighs nothing."""
        similarity = self.resources.similarity
        if similarity is None or self._state is None:
            return None
        return await background.in_thread(partial(extract, similarity))

    async def _ask(self, **inputs: Any) -> Reply:
        lm = self.resources.lms["judge"]
        plain = True
        with answering() as answered:
            try:
                reply = await ask(self.judge, lm, role="judge", config=_LOGPROBS, **inputs)
            except LanguageModelError as error:
                if error.kind not in _REPAIRABLE:
                    raise
                plain = False
                # The same request would give the same reply at temperature 0.
                reply = await ask(self.judge, lm, role="judge", config={**_LOGPROBS, "temperature": 0.5}, **inputs)
        by = self._identity if answered.endpoint is None else answered.endpoint.label
        return Reply(reply, by, plain)

    def _known(self, *shown: str) -> Said | None:
        """What the language model that is asked first has said already."""
        kept = self.resources.opinions.get(self._key(self._identity, *shown))
        return None if kept is None else Said(kept.scores, kept.reason, cached=True, fitted=True)

    def _keep(self, reply: Reply, kept: Kept, *shown: str) -> None:
        if reply.plain:
            self.resources.opinions.put(self._key(reply.by, *shown), kept)

    def _key(self, lm: str, *shown: str) -> str:
        return OpinionCache.key(judge_key(self.name, self.judge, lm), *shown)

    async def _opinion(self, *shown: str, **inputs: Any) -> Said:
        """What the language model says of an answer.

        Args:
            shown: Everything that the prompt shows.
            inputs: The signature's.

        Raises:
            LanguageModelError: No usable reply.
        """
        known = self._known(*shown)
        if known is not None:
            return known
        reply = await self._ask(**inputs)
        probabilities = label_probabilities(reply.prediction)
        score = probabilities[0] if probabilities else float(reply.prediction.verdict == YES)
        report([score])
        reason = reply.prediction.reason.strip()
        self._keep(reply, Kept((score,), reason), *shown)
        return Said((score,), reason, cached=False, fitted=reply.by == self._identity)

    def _verdict(self, score: float | None, reason: str, **more: Any) -> dspy.Prediction:
        passed = reaches(score, self.threshold)
        verdict = Verdict(judge=self.name, score=score, passed=passed, reason=reason, **more)
        return dspy.Prediction(verdict=verdict, score=score, passed=passed, reason=reason)

    def _weighed(self, said: Said, features: Mapping[str, float] | None, seen: Mapping[str, float]) -> dspy.Prediction:
        score, reason = said.scores[0], said.reason
        if score is None or self._state is None or features is None or not said.fitted:
            return self._verdict(score, reason, cached=said.cached, evidence=dict(seen))
        weighed = self._state.weighed.probability({**features, "lm": log_odds(score)})
        if (weighed >= self.threshold) != (score >= 0.5):
            # The sentence would contradict the verdict.
            reason = f"语言模型的判断是“{YES if score >= 0.5 else NO}”，与其他依据合起来不成立（{reason}）"
        return self._verdict(weighed, reason, cached=said.cached, evidence={**seen, **features, "lm": score})

    def _alone(self, features: Mapping[str, float]) -> float | None:
        """Probability without a language model; None where it would be a guess."""
        assert self._state is not None
        probability = self._state.alone.probability(features)
        return None if self._state.low < probability < self._state.high else probability
