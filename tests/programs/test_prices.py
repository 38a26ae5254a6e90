"""Prices stand behind an endpoint or hold for all; half of one, or none where money is limited, is an error."""

from typing import Any

import pytest

from programs.errors import SettingsError
from programs.lm import RoleLMs
from programs.prices import FREE, Price, Tokens, cost_of, price_of, shown_money
from programs.settings import load_settings

PRICED = "a@http://one/v1?prompt_price=2&cached_price=0.5&completion_price=8"


def prices(line: str, **settings: Any) -> list[Price | None]:
    return [endpoint.price for endpoint in load_settings(lm=line, **settings).endpoints("generator")]


def test_an_endpoint_names_its_price_and_the_common_one_is_for_those_that_do_not() -> None:
    found = prices(f"{PRICED} b@http://two/v1 local", prompt_price=1, completion_price=4)
    assert found == [Price(2, 8, 0.5), Price(1, 4), FREE]


def test_nothing_of_the_common_price_is_mixed_into_an_endpoints_own() -> None:
    line = "a@http://one/v1?prompt_price=2&completion_price=8"
    assert prices(line, prompt_price=1, cached_price=0.1, completion_price=4) == [Price(2, 8, None)]


def test_without_a_price_it_is_unknown_and_only_the_embedded_model_is_free() -> None:
    assert prices("a@http://one/v1 local") == [None, FREE]


def test_a_price_is_no_part_of_what_calibrations_are_tied_to() -> None:
    [endpoint] = load_settings(lm=PRICED).endpoints("judge")
    assert endpoint.label == "a@http://one/v1"


@pytest.mark.parametrize(
    "option",
    [
        "prompt_price=2",
        "completion_price=2",
        "cached_price=1",
        "prompt_price=-1&completion_price=1",
        "prompt_price=nan&completion_price=1",
        "prompt_price=inf&completion_price=1",
        "prompt_price=CANARY&completion_price=1",
        "prompt_price=&completion_price=1",
    ],
)
def test_a_price_that_cannot_be_is_an_error_that_names_the_variable_and_not_the_value(option: str) -> None:
    with pytest.raises(SettingsError) as caught:
        prices(f"a@http://one/v1?{option}")
    assert "ADAPTIVE_RAG_LM" in caught.value.message
    assert "price" in caught.value.message
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "CANARY" not in f"{chain!r}{chain}"
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@pytest.mark.parametrize("half", ["prompt_price", "completion_price", "cached_price"])
def test_half_of_a_common_price_is_an_error(half: str) -> None:
    with pytest.raises(SettingsError, match="ADAPTIVE_RAG_PROMPT_PRICE and ADAPTIVE_RAG_COMPLETION_PRICE"):
        prices("a@http://one/v1", **{half: 1.0})


@pytest.mark.parametrize("name", ["MAX_COST", "PROMPT_PRICE", "CACHED_PRICE", "COMPLETION_PRICE", "CURRENCY"])
@pytest.mark.parametrize("value", ["-1 元", "inf", "nan"])
def test_a_wrong_amount_is_an_error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "CURRENCY":
        value = f"{value} and more"
    monkeypatch.setenv(f"ADAPTIVE_RAG_{name}", value)
    with pytest.raises(SettingsError, match=f"ADAPTIVE_RAG_{name}"):
        load_settings()


# -- a limit on money needs prices -----------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lm": "a@http://one/v1"}, "ADAPTIVE_RAG_LM"),
        ({"lm": f"{PRICED} b@http://two/v1"}, "ADAPTIVE_RAG_LM"),  # nobody would know what a failover costs
        ({"lm": PRICED, "judge_lm": "b@http://two/v1"}, "ADAPTIVE_RAG_JUDGE_LM"),
    ],
)
def test_money_is_limited_only_where_every_endpoint_has_a_price(settings: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RoleLMs(load_settings(max_cost=1, **settings))
    assert f"an endpoint of {named} has no price" in caught.value.message
    for name in ("?prompt_price=", "completion_price=", "ADAPTIVE_RAG_PROMPT_PRICE", "ADAPTIVE_RAG_COMPLETION_PRICE"):
        assert name in caught.value.hint


def test_what_takes_no_part_in_an_answer_needs_no_price() -> None:
    assert RoleLMs(load_settings(max_cost=1, lm=PRICED, reflection_lm="b@http://two/v1")).paid
    assert not RoleLMs(load_settings(max_cost=1)).paid


# -- arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "price", "cost"),
    [
        (Tokens(1_000_000, 0, 0), Price(2, 8), 2.0),
        (Tokens(1_000_000, 0, 500_000), Price(2, 8), 6.0),
        (Tokens(1_000_000, 400_000, 0), Price(2, 8, 0.5), 1.4),
        (Tokens(1_000_000, 400_000, 0), Price(2, 8), 2.0),  # no price of its own: like the others
        (Tokens(100, 900, 0), Price(2, 8, 0), 0.0),  # more cached than there were
        (Tokens(100, 0, 10), None, None),
        (Tokens(0, 0, 0), Price(2, 8), None),  # the endpoint reports nothing
        (Tokens(0, 0, 0), FREE, 0.0),
    ],
)
def test_what_a_reply_costs(tokens: Tokens, price: Price | None, cost: float | None) -> None:
    assert cost_of(tokens, price) == (None if cost is None else pytest.approx(cost))


def test_the_most_holds_whatever_the_cache_does() -> None:
    for price in (Price(2, 8, 0.5), Price(2, 8, 3), Price(2, 8)):
        most = price.most(prompt=100, completion=10)
        assert all(most >= price.amount(prompt=100, completion=10, cached=cached) for cached in (0, 50, 100))


def test_no_values_are_no_price() -> None:
    assert price_of({"prompt_price": None, "completion_price": None}) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "花费未知"), (0.0, "0.0000 元"), (0.00002, "不到 0.0001 元"), (0.01234, "0.0123 元"), (12.345, "12.35 元")],
)
def test_money_is_shown_so_that_small_amounts_are_not_nothing(amount: float | None, text: str) -> None:
    assert shown_money(amount, "元") == text
