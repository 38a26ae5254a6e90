"""A plan is checked when it is made, and an error names the key."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from programs.errors import PlanError
from programs.retrieval.plan import RetrievalPlan


def test_a_patch_changes_what_it_names_and_nothing_else() -> None:
    plan = RetrievalPlan(top_k=3, weights={"text": 2.0})
    patched = plan.patched({"top_k": 8, "weights": {"dense": 0.5}, "routes": ["dense"]})
    assert (patched.top_k, patched.routes) == (8, ("dense",))
    assert patched.weights == {"text": 2.0, "dense": 0.5}
    assert plan.top_k == 3, "the original is as it was"
    assert plan.patched({}) == plan


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ({"topk": 8}, "topk"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": "many"}, "top_k"),
        ({"rough_top_k": 201}, "rough_top_k"),
        ({"routes": ["dense", "telepathy"]}, "routes.1"),
        ({"routes": "dense"}, "routes"),
        ({"index": "secrets"}, "index"),
        ({"score_threshold": 1.1}, "score_threshold"),
        ({"score_threshold": math.nan}, "score_threshold"),
        ({"weights": {"telepathy": 1.0}}, "weights.telepathy"),
        ({"weights": {"text": -1.0}}, "weights.text"),
        ({"weights": {"text": math.inf}}, "weights.text"),
        ({"weights": {"text": math.nan}}, "weights.text"),
        ({"weights": 3}, "weights"),
        ({"route_timeout": 0}, "route_timeout"),
        ({"max_hops": 0}, "max_hops"),
        ({"max_hops": -1}, "max_hops"),
        ({"max_hops": None}, "max_hops"),
        ({"max_hops": 11}, "max_hops"),
        ({"top_k": {"x": 1}}, "top_k"),
        ({"": 1}, ""),
    ],
)
def test_a_wrong_patch_is_an_error_that_names_the_key(patch: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError) as caught:
        RetrievalPlan().patched(patch)
    assert named in caught.value.message
    assert "top_k" in caught.value.hint


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        RetrievalPlan().patched({"topk": 8, "hops": 1})
    assert "topk" in caught.value.message
    assert "hops" in caught.value.message


@pytest.mark.parametrize("patch", [[], "x", 3, None])
def test_a_patch_is_an_object(patch: Any) -> None:
    with pytest.raises(PlanError, match="JSON object"):
        RetrievalPlan().patched(patch)


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        RetrievalPlan().top_k = 4
