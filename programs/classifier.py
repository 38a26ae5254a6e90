"""The cheap first stage of the router: a linear classifier over what a question means and how it is worded.

Two logistic regressions, one for the intent, one for whether the question must be asked back, on the
mean-centred query vector and on short runs of words: the vector knows what a question is about, the runs
know that "多少" asks for a number and "帮我" for a deed. They cost milliseconds and no language model call,
and the vector is needed for searching anyway. Where they are not sure enough, the language model decides
with their opinion (`programs.router`). Fitted by `python -m optimize.router_fit`, stored as JSON, tied to
the embedder.
"""

import re
from math import sqrt
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from programs.errors import CompiledStateError
from programs.retrieval.base import Vector
from programs.retrieval.tokens import fold
from signatures.records import Probability, Record
from signatures.vocabulary import INTENTS, Intent

DEFAULT_PATH = Path(__file__).parent / "compiled" / "router_classifier.json"

Floats = tuple[float, ...]

LONGEST = 3
"""Words or characters in a run, at most."""
_UNIT = re.compile(r"[a-z]+|\d+|[^\s\w]|[^\W\da-z]")


class ClassifierState(Record):
    """What is stored; all vectors have the embedder's dimension.

    Attributes:
        embedder: `Embedder.name` that the vectors come from.
        mean: Subtracted from a query vector, which is then brought to length 1.
        weights: A vector for each intent.
        bias: A number for each intent.
        clarify_weights: Vector for "must be asked back".
        clarify_bias: Its number.
        grams: By run of words: a weight for each intent, in the order of `INTENTS`, and one for "must be
            asked back". A run that is not named weighs nothing.
        temperature: Divides the intents' logits, so that probabilities are calibrated.
        accept: Probability from which an intent is taken without a language model.
        clear: Probability of "must be asked back" up to which a question is taken as clear.
        ask_back: Probability from which it is asked back.
        lm_weight: What a language model's probabilities are worth beside these, by model name: they are
            raised to it, and with 0 the model is not asked. A model that is not named counts 1.
        card: Where the numbers come from: data, counts, measured figures.
    """

    embedder: str
    mean: Floats
    weights: dict[Intent, Floats]
    bias: dict[Intent, float]
    clarify_weights: Floats
    clarify_bias: float
    grams: dict[str, Floats]
    temperature: float = Field(gt=0)
    accept: Probability
    clear: Probability
    ask_back: Probability
    lm_weight: dict[str, float] = Field(default_factory=dict)
    card: dict[str, str | int | float | list[float]]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if set(self.weights) != set(INTENTS) or set(self.bias) != set(INTENTS):
            raise ValueError("every intent needs weights and a bias")
        sizes = {len(self.mean), len(self.clarify_weights), *(len(row) for row in self.weights.values())}
        if len(sizes) != 1 or not all(np.isfinite(self.mean)):
            raise ValueError("the vectors differ in length or are not finite")
        if any(len(row) != len(INTENTS) + 1 or not all(np.isfinite(row)) for row in self.grams.values()):
            raise ValueError("a run needs a finite weight for each intent and one for asking back")
        return self


class Opinion(Record):
    """What the classifier says of a question.

    Attributes:
        probabilities: Of each intent; they sum to 1.
        clarify: Probability that the question must be asked back.
        clear: Whether the question needs no asking back, as far as the classifier can tell.
        sure: Whether the intent may be taken without a language model.
        must_ask: Whether it must be asked back.
    """

    probabilities: dict[Intent, Probability]
    clarify: Probability
    clear: bool
    sure: bool
    must_ask: bool

    @property
    def best(self) -> Intent:
        """The most probable intent."""
        return max(self.probabilities, key=lambda intent: self.probabilities[intent])


class IntentClassifier:
    """See the module's text."""

    def __init__(self, state: ClassifierState) -> None:
        self.state = state
        self._mean = np.asarray(state.mean, dtype=np.float64)
        self._weights = np.asarray([state.weights[intent] for intent in INTENTS], dtype=np.float64)
        self._bias = np.asarray([state.bias[intent] for intent in INTENTS], dtype=np.float64)
        self._clarify = np.asarray(state.clarify_weights, dtype=np.float64)
        self._grams = {gram: np.asarray(row, dtype=np.float64) for gram, row in state.grams.items()}

    def lm_weight(self, model: str) -> float:
        """What a language model's probabilities are worth beside these; 1 where it was not measured."""
        return self.state.lm_weight.get(model, 1.0)

    def classify(self, question: str, vector: Vector) -> Opinion:
        """Judge a question.

        Args:
            question: The question.
            vector: Its query vector of shape (dimension,), from the embedder of the state.
        """
        x = centred(np.asarray(vector, dtype=np.float64)[None, :], self._mean)[0]
        worded = np.zeros(len(INTENTS) + 1)
        for gram, value in grams(question).items():
            if (row := self._grams.get(gram)) is not None:
                worded += value * row
        logits = (self._weights @ x + worded[:-1] + self._bias) / self.state.temperature
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        clarify = float(1.0 / (1.0 + np.exp(-(self._clarify @ x + worded[-1] + self.state.clarify_bias))))
        probabilities = {intent: float(share) for intent, share in zip(INTENTS, shares, strict=True)}
        clear = clarify <= self.state.clear
        return Opinion(
            probabilities=probabilities,
            clarify=clarify,
            clear=clear,
            sure=clear and float(shares.max()) >= self.state.accept,
            must_ask=clarify >= self.state.ask_back,
        )


def grams(question: str) -> dict[str, float]:
    """Runs of one to three neighbouring words of a question, and what each counts: together they have length 1.

    A Chinese character and a punctuation mark are words of their own, and so are the two ends; a number is a
    number, whichever it is.
    """
    units = ["0" if unit.isdigit() else unit for unit in _UNIT.findall(fold(question))]
    units = ["^", *units, "$"]
    runs = {
        " ".join(units[start : start + size])
        for size in range(1, LONGEST + 1)
        for start in range(len(units) - size + 1)
    }
    return dict.fromkeys(sorted(runs), 1 / sqrt(len(runs)))


def centred(vectors: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors of shape (n, dimension) minus their usual mean, each of length 1.

    The vectors of this family of embedders lie close together; what tells them apart shows only after
    the common part is taken away.
    """
    moved = vectors - mean
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.asarray(moved / np.maximum(lengths, 1e-12), dtype=np.float64)


def load_classifier(embedder: str, path: Path = DEFAULT_PATH) -> IntentClassifier | None:
    """The stored classifier, None where there is none or it belongs to another embedder.

    Raises:
        CompiledStateError: The file is damaged.
    """
    if not path.is_file():
        return None
    try:
        state = ClassifierState.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise CompiledStateError(
            f"{path.name} is damaged: {str(error).splitlines()[0]}",
            hint="Restore it, or make it anew with `python -m optimize.router_fit`.",
        ) from error
    return IntentClassifier(state) if state.embedder == embedder else None
