"""Router: a question becomes a `RouteDecision`."""

import math
from collections.abc import Sequence

import dspy

from programs.errors import LanguageModelError
from programs.language import detect_language, message
from programs.lm import ask
from programs.logprobs import value_tokens
from programs.module import AsyncModule, Resources
from programs.strategies import resolve_strategy
from signatures.records import RouteDecision
from signatures.routing import AskBack, RouteQuestion
from signatures.vocabulary import INTENTS, FailureKind, Intent, Strategy

_LOGPROBS = {"logprobs": True, "top_logprobs": 20}
SAFE_STRATEGY: Strategy = "standard_retrieval"
"""What runs when the router has no opinion: it costs more than a guess, and is wrong less often."""


class Router(AsyncModule):
    """Classifies a question, decides how sure it is, and asks back where it is not."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.classify = dspy.Predict(RouteQuestion)
        self.ask_back = dspy.Predict(AskBack)
        self.resources = resources

    async def aforward(self, *, question: str, history: str = "") -> dspy.Prediction:
        """Decide where a question goes.

        Args:
            question: The question.
            history: Earlier turns as text, "" at the start.

        Returns:
            `decision`, and its fields `intent`, `confidence`, `strategy`, `reasoning` and
            `clarification_questions`. A reply that cannot be used gives intent UNKNOWN with
            confidence 0, the safe strategy and `error_kind`; never an exception.
        """
        try:
            reply = await ask(
                self.classify,
                self.resources.lms["router"],
                role="router",
                history=history,
                question=question,
                config=_LOGPROBS,
            )
        except LanguageModelError as error:
            return _prediction(_undecided(error.kind, error.message))
        confidence = intent_probability(reply, reply.intent)
        if confidence is None:
            confidence = reply.confidence / 100
        threshold = self.resources.settings.confidence_threshold
        strategy = resolve_strategy(
            intent=reply.intent, confidence=confidence, named=reply.strategy, threshold=threshold
        )
        questions: Sequence[str] = ()
        if strategy == "clarify_needed":
            questions = await self._questions(question, history, reply.clarification_questions)
        return _prediction(
            RouteDecision(
                intent=reply.intent,
                confidence=confidence,
                reasoning=reply.reasoning.strip(),
                strategy=strategy,
                clarification_questions=tuple(questions),
            )
        )

    async def _questions(self, question: str, history: str, given: Sequence[str]) -> list[str]:
        """Two or three questions in the language of the question."""
        language = detect_language(question)
        usable = _usable(given, language)
        if len(usable) < 2:
            try:
                reply = await ask(
                    self.ask_back, self.resources.lms["router"], role="router", history=history, question=question
                )
                usable = _usable([*usable, *reply.clarification_questions], language)
            except LanguageModelError:
                pass  # the fixed questions below are asked instead
        if len(usable) < 2:
            usable += [message("clarify_1", language), message("clarify_2", language)]
        return usable[:3]


def _usable(questions: Sequence[str], language: str) -> list[str]:
    found = dict.fromkeys(text.strip() for text in questions if text.strip())
    return [text for text in found if detect_language(text) == language]


def _undecided(kind: FailureKind, reason: str) -> RouteDecision:
    return RouteDecision(
        intent="UNKNOWN", confidence=0.0, reasoning=reason[:200], strategy=SAFE_STRATEGY, error_kind=kind
    )


def _prediction(decision: RouteDecision) -> dspy.Prediction:
    return dspy.Prediction(
        decision=decision,
        intent=decision.intent,
        confidence=decision.confidence,
        strategy=decision.strategy,
        reasoning=decision.reasoning,
        clarification_questions=list(decision.clarification_questions),
    )


def intent_probability(reply: dspy.Prediction, intent: Intent) -> float | None:
    """Probability of `intent` among all intents, at the token where the model began to write it.

    None when the endpoint gives no log-probabilities, the place is not found, or the token begins
    several intents.
    """
    begun = value_tokens(getattr(reply, "logprobs", None), "intent")
    own = total = 0.0
    for option in (begun[0].get("top_logprobs") or ()) if begun else ():
        start = option["token"].strip(' "')
        matching = [name for name in INTENTS if start and name.startswith(start)]
        if intent in matching and len(matching) > 1:
            return None
        mass = math.exp(option["logprob"]) if matching else 0.0
        total += mass
        own += mass if intent in matching else 0.0
    return own / total if total > 0 else None
