"""A second look at the fused candidates by a `CrossEncoder`, when a model is configured.

Scores leave in [0, 1] whether the model gives logits or probabilities; the raw number is kept.
"""

import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from programs.errors import StoreMismatch, StoreUnavailable, missing_package
from programs.retrieval.chunking import embedded_text
from signatures.records import Hit

_FAULTS = (ValueError, IndexError, RuntimeError)
"""What a model raises: too many tokens, no padding token, no memory."""


class Reranker(Protocol):
    """Scores passages against a query; blocks, and may be called from any thread."""

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same hits with new scores in [0, 1], best first; `raw["rerank"]` is the model's number."""
        ...


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder.

    Args:
        model: Hub id or path.
        encoder: A loaded model, for tests; anything with `predict(pairs, activation_fn=)`.
    """

    def __init__(self, model: str, encoder: Any = None) -> None:
        self._model = model
        self._encoder = encoder
        self._lock = threading.Lock()
        self._batch = True
        self._logits = False

    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """See `Reranker`.

        Raises:
            StoreMismatch: The model cannot be loaded, or gives no usable number.
            StoreUnavailable: It failed on these pairs.
            MissingPackageError: sentence-transformers is not installed.
        """
        if not hits:
            return []
        pairs = [(query, embedded_text(hit.passage)) for hit in hits]
        with self._lock:
            raw = self._scores(pairs)
            # One list may look like probabilities by chance; a model stays what it was once seen to be.
            self._logits = self._logits or not _probabilities(raw)
            scores = unit_scores(raw, logits=self._logits)
        scored = [
            hit.model_copy(update={"score": score, "raw": {**hit.raw, "rerank": value}})
            for hit, value, score in zip(hits, raw, scores, strict=True)
        ]
        # By the raw number: a sigmoid near 1 rounds different logits to the same score.
        return sorted(scored, key=lambda hit: (-hit.raw["rerank"], hit.passage.id))

    def _scores(self, pairs: list[tuple[str, str]]) -> list[float]:
        encoder = self._load()
        if self._batch:
            try:
                return self._predict(encoder, pairs)
            except _FAULTS:
                pass  # decoder models without a padding token take one pair at a time only
        try:
            scores = [self._predict(encoder, [pair])[0] for pair in pairs]
        except _FAULTS as error:
            raise StoreUnavailable(f"The reranker {self._model!r} failed: {error}", store="rerank") from error
        self._batch = False
        return scores

    def _predict(self, encoder: Any, pairs: list[tuple[str, str]]) -> list[float]:
        values = np.asarray(encoder.predict(pairs, activation_fn=_identity), dtype=np.float64).reshape(len(pairs), -1)
        if values.shape[1] != 1 or not np.isfinite(values).all():
            raise StoreMismatch(
                f"The reranker {self._model!r} gives {values.shape[1]} numbers for a pair, or no finite one.",
                store="rerank",
                hint="Take a CrossEncoder with one output.",
            )
        return [float(value) for value in values[:, 0]]

    def _load(self) -> Any:
        if self._encoder is None:
            try:
                from sentence_transformers import CrossEncoder
            except ImportError as error:
                raise missing_package("sentence-transformers", "torch") from error
            try:
                self._encoder = CrossEncoder(self._model, device="cpu")
            except (OSError, ValueError) as error:
                raise StoreMismatch(
                    f"The reranker {self._model!r} cannot be loaded: {error}",
                    store="rerank",
                    hint="Set ADAPTIVE_RAG_RERANKER to a local path or unset it.",
                ) from error
        return self._encoder


def _identity(values: Any) -> Any:
    return values


def unit_scores(raw: Sequence[float], *, logits: bool = False) -> list[float]:
    """Scores in [0, 1]: probabilities as they are, logits through the logistic function.

    Args:
        raw: A list in which any number leaves [0, 1] is one of logits.
        logits: Whether the model is known to give them.
    """
    if not logits and _probabilities(raw):
        return list(raw)
    return [_logistic(value) for value in raw]


def _logistic(value: float) -> float:
    # The smaller exponential of the two forms, which cannot overflow.
    small = math.exp(-abs(value))
    return 1.0 / (1.0 + small) if value >= 0 else small / (1.0 + small)


def _probabilities(raw: Sequence[float]) -> bool:
    return all(0.0 <= value <= 1.0 for value in raw)
