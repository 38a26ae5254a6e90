"""What tokens cost: a price is known or it is not, and an unknown one is never taken for free."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MILLION = 1_000_000
NAMES = ("prompt_price", "cached_price", "completion_price")
"""Of the settings, and of the options of an endpoint's line."""


class Tokens(NamedTuple):
    """Tokens of one reply, as the endpoint reports them.

    Attributes:
        prompt: Tokens that it read.
        cached: Of these, the ones from its prefix cache.
        completion: Tokens that it wrote.
    """

    prompt: int
    cached: int
    completion: int

    @property
    def reported(self) -> bool:
        """Whether the endpoint says anything: no prompt is empty."""
        return self.prompt > 0


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens, in the user's own currency.

    Attributes:
        prompt: Of prompt tokens.
        completion: Of completion tokens.
        cached: Of prompt tokens that the endpoint took from its prefix cache; None costs as much as the others.
    """

    prompt: float
    completion: float
    cached: float | None = None

    @property
    def free(self) -> bool:
        return not (self.prompt or self.completion or self.cached)

    def amount(self, *, prompt: float, completion: float, cached: float = 0) -> float:
        """Money for tokens; `cached` of the prompt's tokens came from the prefix cache."""
        again = min(max(cached, 0), prompt)
        rate = self.prompt if self.cached is None else self.cached
        return ((prompt - again) * self.prompt + again * rate + completion * self.completion) / MILLION

    def most(self, *, prompt: float, completion: float) -> float:
        """The most that so many tokens can cost, whatever the cache does."""
        return max(self.amount(prompt=prompt, completion=completion, cached=cached) for cached in (0, prompt))


FREE = Price(prompt=0.0, completion=0.0)


def cost_of(tokens: Tokens, price: Price | None) -> float | None:
    """What a reply cost; None where the price is unknown, or the tokens are, because the endpoint reports none."""
    if price is None or (not tokens.reported and not price.free):
        return None
    return price.amount(prompt=tokens.prompt, completion=tokens.completion, cached=tokens.cached)


def price_of(named: Mapping[str, float | None]) -> Price | None:
    """The price of values by the names in `NAMES`; None where there are none.

    Raises:
        ValueError: A value is no amount of money, or one of the two that every price has is missing.
    """
    given = {name: value for name, value in named.items() if value is not None}
    if not given:
        return None
    if any(not math.isfinite(value) or value < 0 for value in given.values()):
        raise ValueError("prices are numbers from 0 up")
    if not {"prompt_price", "completion_price"} <= set(given):
        raise ValueError("prompt_price and completion_price belong together; 0 is a price too")
    return Price(given["prompt_price"], given["completion_price"], given.get("cached_price"))


def shown_money(amount: float | None, currency: str) -> str:
    """An amount as users read it."""
    if amount is None:
        return "花费未知"
    if 0 < amount < 0.0001:
        return f"不到 0.0001 {currency}"
    return f"{amount:.2f} {currency}" if amount >= 1 else f"{amount:.4f} {currency}"
