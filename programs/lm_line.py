"""A language model is one line, which is read here.

    local                                   the embedded model, no key and no service
    local:qwen2.5-coder-0.5b                the smaller embedded model
    qwen-plus@https://host/v1?key=MY_KEY    any OpenAI-compatible endpoint; MY_KEY names a variable
    a@http://one/v1 b@http://two/v1         several, tried in this order

Options behind `?`, joined by `&`: `key` (name of the variable with the API key), `thinking` (`off`
asks the model not to think, `on` lets it, `auto` sends nothing), `context` (tokens), `concurrency`
(requests at once), `timeout` (seconds for one reply), `prompt_price`, `cached_price` and
`completion_price` (money for a million tokens).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from programs import prices
from programs.errors import SettingsError
from programs.prices import FREE, Price, price_of

N = TypeVar("N", int, float)
Thinking = Literal["auto", "off", "on"]
_OPTIONS = ("key", "thinking", "context", "concurrency", "timeout", *prices.NAMES)
_ENDPOINT = re.compile(r"(.+?)@(https?://.+)")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where one language model is reached.

    Attributes:
        model: Name that the endpoint knows, or the name of an embedded model.
        base_url: Address ending in `/v1`; "" for the embedded model.
        api_key: Sent as a bearer token; None sends none.
        thinking: Whether the model is asked to think.
        context: Tokens that prompt and reply may have together.
        concurrency: Most requests in flight.
        timeout: Seconds that one reply may take.
        price: What its tokens cost; None is unknown.
    """

    model: str
    base_url: str = ""
    api_key: SecretStr | None = None
    thinking: Thinking = "auto"
    context: int = 8192
    concurrency: int = 8
    timeout: float = 60.0
    price: Price | None = None

    @property
    def embedded(self) -> bool:
        return not self.base_url

    @property
    def label(self) -> str:
        """Model and address without anything secret; the identity that calibrations are tied to."""
        return self.model if self.embedded else f"{self.model}@{self.base_url}"


@dataclass(frozen=True, slots=True)
class Common:
    """What holds for endpoints that do not say it themselves.

    Attributes:
        api_key: The key; None for none.
        api_key_variable: Where it comes from, for messages.
        price: The price; None is unknown.
        find_key: Value of the variable that `?key=` names; raises SettingsError where it is not set.
    """

    api_key: SecretStr | None
    api_key_variable: str
    price: Price | None
    find_key: Callable[[str], str]


def read_endpoint(entry: str, variable: str, common: Common) -> EndpointSettings:
    """One endpoint of a line.

    Args:
        entry: The endpoint with its options.
        variable: Where the line comes from, for messages.
        common: For what the entry does not say.

    Raises:
        SettingsError: It cannot be read. No message shows it: a key or a password may have got into it.
    """
    name, _, options_text = entry.partition("?")
    options = dict(parse_qsl(options_text, keep_blank_values=True))
    if set(options) - set(_OPTIONS):
        raise SettingsError(f"{variable}: unknown option behind `?`; there are {', '.join(_OPTIONS)}.")
    if name == "local" or name.startswith("local:"):
        # One request at a time: on a few CPU cores two at once are no faster, and with a single
        # slot the judges find the passages that the generator has just evaluated.
        model, base_url = name.partition(":")[2] or "qwen2.5-coder-1.5b", ""
        defaults: dict[str, float] = {"concurrency": 1, "timeout": 120.0}
    else:
        found = _ENDPOINT.fullmatch(name)
        if found is None or not _callable(found[2]):
            raise SettingsError(
                f"{variable}: an endpoint cannot be read.",
                hint="Write `local`, or MODEL@URL such as qwen-plus@https://host/v1?key=MY_KEY.",
            )
        model, base_url = found[1], found[2]
        if "@" in urlsplit(base_url).netloc:
            raise SettingsError(f"{variable}: put no password into the address; use ?key=VARIABLE.")
        defaults = {"concurrency": 8, "timeout": 60.0}
    key = common.api_key
    if "key" in options:
        key = SecretStr(common.find_key(options["key"]))
    if key is not None and base_url:
        key = _header_key(key, variable if "key" in options else common.api_key_variable)
    thinking = options.get("thinking", "auto")
    if thinking not in get_args(Thinking):
        raise SettingsError(f"{variable}: thinking is auto, off or on.")
    # Nobody is paid for the embedded model, whatever the others cost.
    price = _own_price(options, variable) or (common.price if base_url else FREE)
    try:
        return EndpointSettings(
            model=model,
            base_url=base_url.rstrip("/"),
            api_key=key if base_url else None,
            thinking=thinking,  # type: ignore[arg-type]  # checked above
            context=_positive(int(options.get("context", 8192))),
            concurrency=_positive(int(options.get("concurrency", defaults["concurrency"]))),
            timeout=_positive(float(options.get("timeout", defaults["timeout"]))),
            price=price,
        )
    except ValueError as error:
        raise SettingsError(f"{variable}: context, concurrency and timeout are positive numbers.") from error


def _own_price(options: Mapping[str, str], variable: str) -> Price | None:
    """The price that an entry names; all of it, nothing is filled in from the common one."""
    given = {name: options[name] for name in prices.NAMES if name in options}
    try:
        named = {name: float(text) for name, text in given.items()}
    except ValueError:
        # Without the cause: it repeats what was written.
        raise SettingsError(f"{variable}: {', '.join(prices.NAMES)} are numbers.") from None
    try:
        return price_of(named)
    except ValueError as error:
        raise SettingsError(f"{variable}: {error}.") from error


def _callable(address: str) -> bool:
    """Whether an address names a host, and a port that there is."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _header_key(key: SecretStr, variable: str) -> SecretStr:
    """A key as a header carries it: a line end that was copied with it is gone."""
    text = key.get_secret_value().strip()
    if not text.isascii() or not text.isprintable():
        raise SettingsError(
            f"{variable}: the API key holds characters that no key has.",
            hint="Copy it again; a placeholder such as 你的密钥 is no key.",
        )
    return SecretStr(text)


def _positive(value: N) -> N:
    if not value > 0 or value == float("inf"):
        raise ValueError(value)
    return value
