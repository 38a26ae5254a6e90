"""The labels of a judge's reply, and how likely the model found each of them."""

import math
import re
from functools import lru_cache

import dspy
from pydantic import Field

from programs.logprobs import value_tokens
from signatures.vocabulary import NO, YES, Label

_ENTRY = re.compile(rf"(\d+)\s*[:：.、]?\s*({YES}|{NO})")


def label_probabilities(prediction: dspy.Prediction, field: str = "verdict") -> list[float]:
    """Probability of 是 at each place of a field where the model wrote 是 or 否, in order.

    Token probabilities are those before any grammar, so both labels are among the alternatives.
    Empty when the endpoint gives no log-probabilities.
    """
    found = []
    for token in value_tokens(getattr(prediction, "logprobs", None), field):
        if _label(token["token"]) is None:
            continue
        mass: dict[Label, float] = {YES: 0.0, NO: 0.0}
        for option in token.get("top_logprobs") or [token]:
            label = _label(option["token"])
            if label is not None:
                mass[label] += math.exp(option["logprob"])
        if sum(mass.values()) > 0:
            found.append(mass[YES] / (mass[YES] + mass[NO]))
    return found


def _label(token: str) -> Label | None:
    stripped = token.strip(" \"'0123456789:：，,{}[]")
    return next((label for label in (YES, NO) if label == stripped), None)


@lru_cache(maxsize=256)
def numbered(signature: type[dspy.Signature], count: int) -> type[dspy.Signature]:
    """The signature with a pattern that asks for exactly one label for each of `count` passages."""
    pattern = "^" + " ".join(f"{n}({YES}|{NO})" for n in range(1, count + 1)) + "$"
    field = signature.output_fields["verdicts"]
    extra = dict(field.json_schema_extra or {})
    made: type[dspy.Signature] = signature.delete("verdicts").append(
        "verdicts", Field(pattern=pattern, json_schema_extra=extra), str
    )
    return made


def aligned_labels(text: str, count: int) -> list[str | None]:
    """Label of each passage by its number; None where it is missing or contradicts itself."""
    labels: list[set[str]] = [set() for _ in range(count)]
    for number, label in _ENTRY.findall(text):
        if 1 <= int(number) <= count:
            labels[int(number) - 1].add(label)
    return [next(iter(found)) if len(found) == 1 else None for found in labels]
