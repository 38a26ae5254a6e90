"""Router: a question becomes a `RouteDecision`, by a cascade.

A calibrated classifier over the question's embedding decides where it is sure, in milliseconds. The
rest goes to the language model, and both opinions are combined. A question that is not clear enough
is asked back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import dspy

from programs import budget
from programs.classifier import Opinion
from programs.engine import answering
from programs.errors import AdaptiveRAGError, LanguageModelError
from programs.language import detect_language, message
from programs.lm import ask
from programs.logprobs import value_tokens
from programs.module import AsyncModule, Resources
from programs.rewriter import canonical
from programs.strategies import INTENT_STRATEGY, SAFE_STRATEGY, resolve_strategy
from signatures.records import RouteDecision
from signatures.routing import AskBack, RouteQuestion
from signatures.vocabulary import INTENTS, Intent, Strategy

_LOGPROBS = {"logprobs": True, "top_logprobs": 20}


class Router(AsyncModule):
    """Classifies a question, decides how sure it is, and asks back where it is not."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.classify = dspy.Predict(RouteQuestion)
        self.ask_back = dspy.Predict(AskBack)
        self.resources = resources

    async def aforward(
        self,
        *,
        question: str,
        history: str = "",
        thinking: Callable[[Intent | None], None] | None = None,
        ask_back: bool = True,
    ) -> dspy.Prediction:
        """Decide where a question goes.

        Args:
            question: The question.
            history: Earlier turns as text, "" at the start.
            thinking: Called with the classifier's guess before the language model is asked, for work that
                can be done meanwhile.
            ask_back: False searches what would be asked back.

        Returns:
            `decision`, and its fields `intent`, `confidence`, `strategy`, `reasoning` and
            `clarification_questions`. A reply that cannot be used gives intent UNKNOWN with
            confidence 0, the safe strategy and `error_kind`; never an exception.
        """
        opinion = await self._opinion(question)
        weight = self._weight_of(self.resources.lms.endpoints("router")[0].model)
        if opinion is not None and (opinion.sure or opinion.must_ask or weight == 0):
            confidence = opinion.probabilities[opinion.best]
            strategy = resolve_strategy(
                intent=opinion.best,
                confidence=confidence,
                named="clarify_needed" if opinion.must_ask else None,
                threshold=self.resources.settings.confidence_threshold,
                shares=opinion.probabilities,
            )
            if strategy == "clarify_needed" and not ask_back:
                strategy = SAFE_STRATEGY
            return await self._decided(
                question, history, opinion.best, confidence, strategy, "由分类器判断", source="classifier"
            )
        if thinking is not None:
            thinking(None if opinion is None else opinion.best)
        try:
            with answering() as answered:
                reply = await ask(
                    self.classify,
                    self.resources.lms["router"],
                    role="router",
                    history=history,
                    question=question,
                    config=_LOGPROBS,
                )
        except LanguageModelError as error:
            return _prediction(self._undecided(opinion, error))
        if answered.endpoint is not None:
            weight = self._weight_of(answered.endpoint.model)
        shares = combined(intent_shares(reply), opinion, weight)
        intent, named = reply.intent, reply.strategy
        confidence = reply.confidence / 100
        if shares:
            intent = max(shares, key=lambda name: shares[name])
            confidence = shares[intent]
        if intent != reply.intent or (opinion is not None and opinion.clear):
            # The named strategy belongs to another intent, or the classifier sees nothing to ask back.
            named = None
        strategy = resolve_strategy(
            intent=intent,
            confidence=confidence,
            named=named,
            threshold=self.resources.settings.confidence_threshold,
            shares=shares,
        )
        if strategy == "clarify_needed" and not ask_back:
            strategy = SAFE_STRATEGY
        reason = reply.reasoning.strip()
        return await self._decided(
            question, history, intent, confidence, strategy, reason, given=reply.clarification_questions
        )

    def _weight_of(self, model: str) -> float:
        """What a language model's opinion is worth beside the classifier's; 1 where it was not measured."""
        classifier = self.resources.classifier
        return 1.0 if classifier is None else classifier.lm_weight(model)

    async def _opinion(self, question: str) -> Opinion | None:
        """What the classifier says, None where there is none for this embedder or the embedder fails."""
        classifier = self.resources.classifier
        if classifier is None:
            return None
        try:
            vector = await self.resources.searcher.query_vector(question)
        except AdaptiveRAGError as error:
            budget.current().note(f"路由分类器：{error.message}")
            return None
        return classifier.classify(question, vector)

    async def _decided(
        self,
        question: str,
        history: str,
        intent: Intent,
        confidence: float,
        strategy: Strategy,
        reason: str,
        *,
        source: Literal["lm", "classifier"] = "lm",
        given: Sequence[str] = (),
    ) -> dspy.Prediction:
        questions: Sequence[str] = ()
        if strategy == "clarify_needed":
            questions = await self._questions(question, history, given)
        return _prediction(
            RouteDecision(
                intent=intent,
                confidence=confidence,
                reasoning=reason,
                strategy=strategy,
                clarification_questions=tuple(questions),
                source=source,
            )
        )

    def _undecided(self, opinion: Opinion | None, error: LanguageModelError) -> RouteDecision:
        """Without a usable reply: the classifier's best where it is likely enough, else the safe strategy."""
        intent: Intent = "UNKNOWN"
        confidence, strategy = 0.0, SAFE_STRATEGY
        if opinion is not None and opinion.probabilities[opinion.best] >= self.resources.settings.confidence_threshold:
            intent, confidence = opinion.best, opinion.probabilities[opinion.best]
            strategy = INTENT_STRATEGY.get(intent, "fallback")
        return RouteDecision(
            intent=intent,
            confidence=confidence,
            reasoning=error.message[:200],
            strategy=strategy,
            source="lm" if opinion is None else "classifier",
            error_kind=error.kind,
        )

    async def _questions(self, question: str, history: str, given: Sequence[str]) -> list[str]:
        """Two or three questions in the language of the question."""
        language = detect_language(question)
        usable = _usable(given, language, question)
        if len(usable) < 2:
            try:
                reply = await ask(
                    self.ask_back, self.resources.lms["router"], role="router", history=history, question=question
                )
                usable = _usable([*usable, *reply.clarification_questions], language, question)
            except LanguageModelError:
                pass  # the fixed questions below are asked instead
        if len(usable) < 2:
            usable += [message("clarify_1", language), message("clarify_2", language)]
        return usable[:3]


def _usable(questions: Sequence[str], language: str, question: str) -> list[str]:
    """Different questions in the right language; the user's own words back are no question."""
    found = {canonical(text): text.strip() for text in questions}
    own = canonical(question)
    return [text for key, text in found.items() if key and key not in own and detect_language(text) == language]


def _prediction(decision: RouteDecision) -> dspy.Prediction:
    return dspy.Prediction(
        decision=decision,
        intent=decision.intent,
        confidence=decision.confidence,
        strategy=decision.strategy,
        reasoning=decision.reasoning,
        clarification_questions=list(decision.clarification_questions),
    )


def intent_shares(reply: dspy.Prediction) -> dict[Intent, float]:
    """Share of each intent at the token where the model began to write one; they sum to 1.

    Empty when the endpoint gives no log-probabilities, the place is not found, or a likely token
    begins several intents.
    """
    begun = value_tokens(getattr(reply, "logprobs", None), "intent")
    shares: dict[Intent, float] = dict.fromkeys(INTENTS, 0.0)
    for option in (begun[0].get("top_logprobs") or ()) if begun else ():
        start = option["token"].strip(' "')
        matching = [name for name in INTENTS if start and name.startswith(start)]
        if reply.intent in matching and len(matching) > 1:
            return {}
        for intent in matching:
            shares[intent] += math.exp(option["logprob"]) / len(matching)
    total = sum(shares.values())
    return {intent: share / total for intent, share in shares.items()} if total > 0 else {}


def combined(shares: Mapping[Intent, float], opinion: Opinion | None, weight: float = 1.0) -> dict[Intent, float]:
    """The language model's and the classifier's probabilities as one, normalised product.

    The two read the question in different ways, so their errors are treated as independent. Where one
    of them has nothing to say, the other stands alone.

    Args:
        shares: The language model's, {} for none.
        opinion: The classifier's, None for none.
        weight: Power that the language model's are raised to; 0 leaves the classifier's alone.
    """
    if opinion is None:
        return dict(shares)
    if not shares:
        return dict(opinion.probabilities)
    product = {intent: shares[intent] ** weight * opinion.probabilities[intent] for intent in INTENTS}
    total = sum(product.values())
    return {intent: value / total for intent, value in product.items()} if total > 0 else dict(shares)
