"""The default reranker: a small fitted model over what the routes and the words say of each candidate.

Needs no model file: the nearest sentence is found with the default embedder, the rest is counted. Fitted by
`python -m optimize.rerank_fit` on labelled questions; what it is worth stands in `optimize/LOG.md`.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from programs.errors import CompiledStateError
from programs.features import FORM, RELEVANCE, relevance_features
from programs.similarity import Similarity
from programs.weighing import LinearModel
from signatures.records import Hit, Record

DEFAULT_PATH = Path(__file__).parents[1] / "compiled" / "rerank.json"
ROUTES = ("dense", "text", "questions", "summaries")
FEATURES = ("fused", "found_by", *(f"route_{route}" for route in ROUTES), *RELEVANCE, *FORM)


class CombinationState(Record):
    """What is stored.

    Attributes:
        embedder: Name of the embedder whose cosines were fitted.
        model: Probability that a candidate holds the answer.
        card: Where it comes from and what was measured.
    """

    embedder: str
    model: LinearModel
    card: dict[str, str | int | float | list[float]] = Field(default_factory=dict)


class CombinationReranker:
    """Orders candidates by the probability that they hold the answer; see `rerank.Reranker`.

    Args:
        model: The fitted model, over `FEATURES`.
        similarity: Finds the nearest sentence.
    """

    def __init__(self, model: LinearModel, similarity: Similarity) -> None:
        self._model = model
        self._similarity = similarity

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """See `rerank.Reranker`; `raw["rerank"]` is the score itself."""
        scored = []
        for hit, features in zip(hits, combination_features(query, hits, self._similarity), strict=True):
            score = self._model.probability(features)
            scored.append(hit.model_copy(update={"score": score, "raw": {**hit.raw, "rerank": score}}))
        return sorted(scored, key=lambda hit: (-hit.score, hit.passage.id))


def combination_features(query: str, hits: Sequence[Hit], similarity: Similarity) -> list[dict[str, float]]:
    """`FEATURES` of each candidate of one search; same order.

    The scores of a route are taken relative to its best, as a cosine or a BM25 means little across queries; a
    candidate that a route did not find gets the lowest that it gave.
    """
    found = relevance_features(query, [hit.passage for hit in hits], similarity)
    for route in ROUTES:
        values = [hit.raw[route] for hit in hits if route in hit.raw]
        best, least = max(values, default=0.0), min(values, default=0.0)
        for hit, features in zip(hits, found, strict=True):
            value = hit.raw.get(route, least)
            # BM25 has no upper end: as a share of the best. Cosines: the distance to the best.
            features[f"route_{route}"] = (value / best if best > 0 else 0.0) if route == "text" else value - best
    for hit, features in zip(hits, found, strict=True):
        features["fused"] = hit.score
        features["found_by"] = float(len(hit.routes))
    return found


def load_combination(embedder: str, path: Path = DEFAULT_PATH) -> LinearModel | None:
    """The stored model for an embedder, None where there is none for it.

    Raises:
        CompiledStateError: The file is there and cannot be read.
    """
    if not path.exists():
        return None
    try:
        state = CombinationState.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        raise CompiledStateError(
            f"{path} is no reranker: {str(error).splitlines()[0]}",
            hint="Restore it, or make it anew with `python -m optimize.rerank_fit`.",
        ) from error
    return state.model if state.embedder == embedder and set(state.model.features) <= set(FEATURES) else None
