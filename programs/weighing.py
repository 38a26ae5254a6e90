"""Small fitted models that weigh evidence: a logistic regression, stored as plain numbers.

Fitted by `python -m optimize calibrate` on labelled cases, part of the compiled state.
"""

import math
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from signatures.records import Probability, Record


class LinearModel(Record):
    """A logistic regression over standardised features.

    Attributes:
        features: Names, in the order of the numbers.
        center, scale: Mean and standard deviation of each feature on the training cases.
        weights: Of the standardised features.
        bias: Added to their sum.
    """

    features: tuple[str, ...] = Field(min_length=1)
    center: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    @model_validator(mode="after")
    def _whole(self) -> Self:
        numbers = (*self.center, *self.scale, *self.weights, self.bias)
        if not len(self.features) == len(self.center) == len(self.scale) == len(self.weights):
            raise ValueError("features, center, scale and weights differ in length")
        if not all(math.isfinite(number) for number in numbers) or not all(scale > 0 for scale in self.scale):
            raise ValueError("every number must be finite, every scale above 0")
        return self

    def probability(self, features: Mapping[str, float]) -> float:
        """Probability in [0, 1] for one case.

        Args:
            features: At least those of the model, by name; a value beyond four standard deviations counts
                as four, so that nothing unheard-of outweighs all other evidence.

        Raises:
            KeyError: One is missing.
        """
        total = self.bias
        for name, center, scale, weight in zip(self.features, self.center, self.scale, self.weights, strict=True):
            total += weight * max(-4.0, min(4.0, (features[name] - center) / scale))
        # The smaller exponential of the two forms, which cannot overflow.
        small = math.exp(-abs(total))
        return 1.0 / (1.0 + small) if total >= 0 else small / (1.0 + small)


class JudgeState(Record):
    """How a judge weighs its evidence.

    Attributes:
        weighed: The language model's opinion (feature `lm`) together with the rest.
        alone: The rest, for a reply that cannot be used.
        threshold: Probability from which a verdict passes.
        low, high: With `alone`, a probability between them is UNKNOWN.
    """

    weighed: LinearModel
    alone: LinearModel
    threshold: Probability
    low: Probability
    high: Probability


def log_odds(probability: float) -> float:
    """Log-odds of a probability, at most 7 either way: beyond, a model's certainty says nothing more."""
    clipped = min(max(probability, 1e-3), 1 - 1e-3)
    return math.log(clipped / (1 - clipped))
