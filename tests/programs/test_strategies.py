"""The table is whole, and a decision becomes a strategy by the written order."""

import math

import pytest

from programs.retrieval.plan import ROUTES
from programs.strategies import INTENT_STRATEGY, STRATEGY_TABLE, resolve_strategy
from signatures.vocabulary import INTENTS, STRATEGIES, Intent, Strategy

NAMED: tuple[Strategy | None, ...] = (*STRATEGIES, None)


def test_every_strategy_has_an_entry_and_only_those_that_retrieve_have_a_plan() -> None:
    assert set(STRATEGY_TABLE) == set(STRATEGIES)
    for entry in STRATEGY_TABLE.values():
        assert (entry.plan is not None) == (entry.ending == "retrieve")
        if entry.plan is not None:
            assert set(entry.plan.routes) <= set(ROUTES)
            assert entry.plan.routes
            assert entry.plan.rough_top_k >= entry.plan.top_k


def test_every_intent_but_unknown_has_a_strategy() -> None:
    assert set(INTENT_STRATEGY) == set(INTENTS) - {"UNKNOWN"}


@pytest.mark.parametrize("intent", INTENTS)
@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize(
    ("confidence", "sure"),
    [(1.0, True), (0.6, True), (math.nextafter(0.6, 0), False), (0.5999, False), (0.0, False), (math.nan, False)],
)
def test_the_order_of_decisions(intent: Intent, named: Strategy | None, confidence: float, sure: bool) -> None:
    found = resolve_strategy(intent=intent, confidence=confidence, named=named, threshold=0.6)
    if named == "clarify_needed" or not sure:
        assert found == "clarify_needed"
    elif intent != "UNKNOWN":
        assert found == INTENT_STRATEGY[intent]
    else:
        assert found == (named or "fallback")


def test_a_threshold_of_zero_never_asks_back() -> None:
    assert resolve_strategy(intent="HOW_TO", confidence=0.0, named=None, threshold=0.0) == "standard_retrieval"


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        STRATEGY_TABLE["fallback"] = STRATEGY_TABLE["direct_reply"]  # type: ignore[index]
