"""One language model per role, and the one way in which modules call it.

`ask` is the only place where a predictor meets an LM: it sets the adapter, keeps DSPy's history, trace
and cache out of the way, and turns every error of the layers below into one `LanguageModelError` with a
kind. A caller that handles this error handles all of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import dspy
from dspy.dsp.utils.settings import main_thread_config
from dspy.utils.exceptions import AdapterParseError

from programs import background
from programs.adapter import FieldAdapter
from programs.endpoint import Address, EndpointClient
from programs.engine import AsyncEngine, Engine, in_order
from programs.errors import LanguageModelError
from programs.lm_line import EndpointSettings
from programs.replies import ReplyEmpty, ReplyTruncated
from programs.settings import ROLES, Role, Settings
from signatures.vocabulary import FailureKind

MAX_TOKENS: dict[Role, int] = {"router": 256, "generator": 768, "judge": 200, "reflection": 4096}
"""Room for one reply by role; a reply that is cut is asked for once more with twice of it."""

_clients: dict[EndpointSettings, EndpointClient] = {}


def endpoint_client(settings: EndpointSettings, find_address: Callable[[], Address]) -> EndpointClient:
    """The process-wide client of an endpoint, so that its limit holds for all roles and programs."""
    return _clients.setdefault(settings, EndpointClient(settings, find_address))


class RoleLMs:
    """The language models of a program, by role; shared by copies of the program, never saved.

    Args:
        settings: Endpoints by role.
        only: Gives every role this endpoint instead, for checks.
    """

    def __init__(self, settings: Settings, *, only: EndpointSettings | None = None) -> None:
        self._endpoints = {role: (only,) if only is not None else settings.endpoints(role) for role in ROLES}
        self._clients = {
            role: [endpoint_client(e, functools.partial(_address, e, settings)) for e in self._endpoints[role]]
            for role in ROLES
        }
        self._lms = {role: self._build(role) for role in ROLES}

    def __getitem__(self, role: Role) -> dspy.LM:
        return self._lms[role]

    def __deepcopy__(self, memo: dict[int, Any]) -> "RoleLMs":
        return self

    def endpoints(self, role: Role) -> tuple[EndpointSettings, ...]:
        return self._endpoints[role]

    def identity(self, role: Role) -> str:
        """What calibrations and compiled states of a role are tied to: model and address, no secret."""
        return self._endpoints[role][0].label

    def parallel(self, role: Role) -> bool:
        """Whether two requests of the role are faster side by side than one after the other, where they go now."""
        return next(iter(in_order(self._clients[role]))).settings.concurrency > 1

    @property
    def paid(self) -> bool:
        """Whether answering a question may cost money, as far as prices are known."""
        asked = (one for role in ROLES if role != "reflection" for one in self._endpoints[role])
        return any(one.price is not None and not one.price.free for one in asked)

    def warm_up(self) -> None:
        """Begin to load embedded models in the background; whoever asks first waits for the rest."""
        for client in {client for clients in self._clients.values() for client in clients[:1]}:
            if client.settings.embedded:
                background.start(client.warm_up())

    def _build(self, role: Role) -> dspy.LM:
        engine = AsyncEngine(self._clients[role])
        return dspy.LM(
            # The role in front keeps DSPy from reading rules for known model names into ours.
            f"adaptive-rag/{role}:{self._endpoints[role][0].model}",
            engine=Engine(engine),
            async_engine=engine,
            temperature=0.0,
            max_tokens=MAX_TOKENS[role],
            num_retries=0,
            cache=False,
        )


def _address(endpoint: EndpointSettings, settings: Settings) -> Address:
    if not endpoint.embedded:
        return endpoint.base_url, endpoint.api_key.get_secret_value() if endpoint.api_key else None
    from programs.local_lm import get_local_server

    server = get_local_server(
        endpoint.model,
        directory=settings.models_dir,
        path=settings.model_path,
        hub=settings.model_hub,
        context=endpoint.context,
        slots=endpoint.concurrency,
    )
    return server.base_url, server.api_key


_ADAPTER = FieldAdapter()

_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (ReplyTruncated, "truncated"),
    (ReplyEmpty, "empty"),
    (AdapterParseError, "parse"),
    (dspy.ContextWindowExceededError, "context_overflow"),
    (dspy.LMAuthError, "auth"),
    (dspy.LMRateLimitError, "rate_limit"),
    (dspy.LMTimeoutError, "timeout"),
    (dspy.LMTransportError, "connection"),
    (dspy.LMServerError, "server"),
    (dspy.LMInvalidRequestError, "rejected"),
)

_HINTS: dict[FailureKind, str] = {
    "auth": "检查这个端点的 API key（ADAPTIVE_RAG_API_KEY 或 ?key=变量名）。",
    "connection": "检查地址和端口，端点是否已启动；`adaptive-rag doctor` 会逐个检查。",
    "timeout": "模型太慢或已挂起：换端点，或用 ?timeout=秒数 放宽。",
    "empty": "若是思考型模型，给端点加上 ?thinking=off。",
    "truncated": "若是思考型模型，给端点加上 ?thinking=off。",
    "context_overflow": "用 ?context=token数 说明端点的上下文长度。",
}


def failure_kind(error: Exception) -> FailureKind:
    """The closed kind of an error that DSPy or an engine raised."""
    if getattr(error, "code", None) in ("deadline", "budget"):
        return error.code  # type: ignore[attr-defined, no-any-return]
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), "rejected")


def wanted_trace() -> list[Any] | None:
    """Where an optimizer or a user collects calls; None for DSPy's default list, which only grows."""
    trace: list[Any] | None = dspy.settings.trace
    return None if trace is main_thread_config["trace"] else trace


async def ask(predict: dspy.Predict, lm: dspy.LM, *, role: Role, **inputs: Any) -> dspy.Prediction:
    """Call a predictor with a role's language model.

    Args:
        predict: The predictor.
        lm: The role's language model; it wins over any in DSPy's settings.
        role: For the error's message.
        **inputs: The signature's inputs; `config` and `signature` as in `dspy.Predict`.

    Raises:
        LanguageModelError: No usable reply, for whatever reason; `.kind` says why.
    """
    try:
        with dspy.context(adapter=_ADAPTER, disable_history=True, trace=wanted_trace()):
            return await predict.acall(lm=lm, **inputs)
    except dspy.DSPyError as error:
        kind = failure_kind(error)
        message = str(getattr(error, "message", "") or error)
        raise LanguageModelError(
            message if kind != "parse" else f"the reply does not fit: {message[:300]}",
            kind=kind,
            role=role,
            hint=_HINTS.get(kind, ""),
        ) from error
