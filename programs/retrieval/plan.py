"""What a search does: which routes, how many passages, which weights. Data, not code.

`programs.strategies` holds a plan for each strategy; a user overrides any part of it with a
nested patch (`--plan '{"top_k": 8}'`), which is checked key by key.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from programs.errors import PlanError

RouteName = Literal["dense", "text", "questions", "summaries", "rewritten", "hypothetical"]
"""One way to search.

dense: embedding of the passage. text: BM25 on the passage. questions: embedding of the questions
written for the passage. summaries: embedding of its summary. rewritten: dense and BM25 with a
paraphrase of the query. hypothetical: dense with a passage that a language model imagined.
"""

ROUTES: tuple[RouteName, ...] = get_args(RouteName)
Index = Literal["documents", "code"]
MAX_TOP_K = 50
"""Passages that a language model may be given at most."""


class RetrievalPlan(BaseModel):
    """A checked, immutable plan.

    Attributes:
        index: Which index is searched.
        routes: Routes that run side by side; [] means that nothing is retrieved.
        top_k: Passages handed to the loop.
        rough_top_k: Rows that each route fetches before fusion.
        rerank: Whether the fused candidates are scored again.
        score_threshold: Fused or reranked hits below it are dropped; in [0, 1].
        relative_threshold: Reranked hits below this share of the best one's score are dropped; in [0, 1].
        weights: Weight of a route in the fusion, from 0 up; 1.0 where not named.
        fallback_routes: Routes that are added once the others bring nothing new; a patch that names `routes`
            and not these leaves none.
        route_timeout: Seconds after which a route is given up.
        decompose: Whether the question is split and each part searched.
        max_hops: Most turns of the loop, at least 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: Index = "documents"
    routes: tuple[RouteName, ...] = ("dense", "text")
    top_k: int = Field(default=5, ge=1, le=MAX_TOP_K)
    rough_top_k: int = Field(default=8, ge=1, le=200)
    rerank: bool = True
    score_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    relative_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    weights: dict[RouteName, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = Field(default_factory=dict)
    fallback_routes: tuple[RouteName, ...] = ()
    route_timeout: float = Field(default=10.0, gt=0.0, le=300.0)
    decompose: bool = False
    max_hops: int = Field(default=2, ge=1, le=10)

    def widened(self) -> "RetrievalPlan":
        """The plan that looks further: with the fallback routes, and deeper into each."""
        routes = tuple(dict.fromkeys([*self.routes, *self.fallback_routes]))
        return self.model_copy(
            update={
                "routes": routes,
                "rough_top_k": min(2 * self.rough_top_k, 200),
                "top_k": min(4 * self.top_k, MAX_TOP_K),
                "relative_threshold": 0.0,
                "decompose": False,
            }
        )

    def patched(self, patch: dict[str, Any]) -> "RetrievalPlan":
        """This plan with `patch` laid over it, nested dictionaries key by key.

        Raises:
            PlanError: A key is unknown or a value is out of range; the message names each.
        """
        merged = _overlay(self.model_dump(), patch)
        if "routes" in patch and "fallback_routes" not in patch:
            merged["fallback_routes"] = ()
        try:
            return RetrievalPlan.model_validate(merged)
        except ValidationError as error:
            raise PlanError(_explain(error), hint=f"Known keys: {', '.join(RetrievalPlan.model_fields)}") from error


def _overlay(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(patch, dict):
        raise PlanError(f"A plan is a JSON object, not {type(patch).__name__}.")
    merged = dict(base)
    for key, value in patch.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if nested else value
    return merged


def _explain(error: ValidationError) -> str:
    parts = [f"{'.'.join(str(x) for x in e['loc'])}: {e['msg']}" for e in error.errors()]
    return "The plan is wrong: " + "; ".join(parts)
