"""The table: what each strategy does, and how a decision becomes a strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from programs.retrieval.plan import RetrievalPlan, RouteName
from signatures.vocabulary import Intent, Strategy

Ending = Literal["reply", "retrieve", "refuse", "clarify"]


@dataclass(frozen=True)
class StrategyEntry:
    """What a strategy does.

    Attributes:
        ending: Which part of the program runs.
        plan: The search, for strategies that retrieve.
    """

    ending: Ending
    plan: RetrievalPlan | None = None


_ROUTES: tuple[RouteName, ...] = ("dense", "text", "questions")
_QUESTIONS_FIRST: dict[RouteName, float] = {"questions": 2.0}
"""Questions that were written for a passage are worded as users word theirs: by far the best single route. Summaries
made the fusion worse, so no plan begins with them, nor with a paraphrase or an imagined passage, which cost a call
of seconds each (`optimize/LOG.md`); `--plan '{"routes": [...]}'` switches any of them on."""
_NEAR = 0.1
"""Every passage costs tokens three times over, and one that is nearly surely about something else misleads a small
model more than it helps: a third fewer passages at the same recall (`optimize/LOG.md`). Not for code, where it cost
recall: the scores were fitted on documents."""
_LOOK_FURTHER: tuple[RouteName, ...] = ("summaries",)
"""Added where the first routes brought nothing that answers."""

STRATEGY_TABLE: Mapping[Strategy, StrategyEntry] = MappingProxyType(
    {
        "direct_reply": StrategyEntry("reply"),
        "fast_retrieval": StrategyEntry(
            "retrieve",
            RetrievalPlan(
                routes=_ROUTES,
                top_k=3,
                rough_top_k=8,
                weights=_QUESTIONS_FIRST,
                relative_threshold=_NEAR,
                fallback_routes=_LOOK_FURTHER,
                max_hops=2,
            ),
        ),
        "standard_retrieval": StrategyEntry(
            "retrieve",
            RetrievalPlan(
                routes=_ROUTES,
                top_k=5,
                rough_top_k=8,
                weights=_QUESTIONS_FIRST,
                relative_threshold=_NEAR,
                fallback_routes=_LOOK_FURTHER,
                max_hops=2,
            ),
        ),
        "deep_search": StrategyEntry(
            "retrieve",
            RetrievalPlan(
                routes=_ROUTES,
                top_k=8,
                rough_top_k=8,
                weights=_QUESTIONS_FIRST,
                relative_threshold=_NEAR,
                fallback_routes=_LOOK_FURTHER,
                decompose=True,
                max_hops=3,
            ),
        ),
        "code_search": StrategyEntry(
            "retrieve",
            # Identifiers are words, not meanings: BM25 carries the higher weight.
            RetrievalPlan(
                index="code",
                routes=_ROUTES,
                top_k=5,
                rough_top_k=10,
                weights={"text": 2.0, "questions": 2.0},
                fallback_routes=_LOOK_FURTHER,
                max_hops=2,
            ),
        ),
        "fallback": StrategyEntry("refuse"),
        "clarify_needed": StrategyEntry("clarify"),
    }
)

INTENT_STRATEGY: Mapping[Intent, Strategy] = MappingProxyType(
    {
        "CHIT_CHAT": "direct_reply",
        "FACT_LOOKUP": "fast_retrieval",
        "HOW_TO": "standard_retrieval",
        "COMPARISON": "deep_search",
        "CODE_SEARCH": "code_search",
    }
)
"""The fixed map. UNKNOWN is not in it: there the strategy that the router named decides."""


SAFE_STRATEGY: Strategy = "standard_retrieval"
"""What runs when the router has no opinion, or cannot tell one kind of search from another."""
_SEARCHED: tuple[Intent, ...] = ("FACT_LOOKUP", "HOW_TO", "COMPARISON")
"""Intents whose questions the safe strategy can answer as well."""


def resolve_strategy(
    *,
    intent: Intent,
    confidence: float,
    named: Strategy | None,
    threshold: float,
    shares: Mapping[Intent, float] = MappingProxyType({}),
) -> Strategy:
    """The strategy that runs.

    In this order: an explicit `clarify_needed`; where the confidence is under the threshold (equal passes;
    NaN does not), the safe strategy if it is only unclear which kind of search the question needs, else
    `clarify_needed`; the fixed strategy of the intent; the named strategy; `fallback`.

    Args:
        intent: The class of the question.
        confidence: In [0, 1].
        named: Strategy that the router named, None where it named none.
        threshold: In [0, 1].
        shares: Probability of each intent, where they are known.
    """
    if named == "clarify_needed":
        return "clarify_needed"
    if not confidence >= threshold:
        searched = sum(shares.get(one, 0.0) for one in _SEARCHED)
        return SAFE_STRATEGY if searched >= threshold else "clarify_needed"
    return INTENT_STRATEGY.get(intent) or named or "fallback"
