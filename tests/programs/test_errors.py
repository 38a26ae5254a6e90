"""Each error of the libraries below has a counterpart here; a new one there fails a test here."""

import inspect
import re
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.clients.errors import ERROR_MAPPING, wrap_error
from dspy.utils import exceptions

from programs import errors
from programs.endpoint import Deadline
from programs.lm import failure_kind
from programs.replies import ReplyEmpty, ReplyTruncated
from signatures.answering import AnswerFromPassages
from signatures.vocabulary import FAILURES

DSPY = {
    "AdapterParseError": "parse",
    "ContextWindowExceededError": "context_overflow",
    "LMAuthError": "auth",
    "LMBillingError": "rejected",
    "LMCollectionLimitError": "rejected",
    "LMConfigurationError": "rejected",
    "LMError": "rejected",
    "LMInvalidRequestError": "rejected",
    "LMLockTimeoutError": "rejected",
    "LMNotConfiguredError": "rejected",
    "LMProviderError": "rejected",
    "LMRateLimitError": "rate_limit",
    "LMServerError": "server",
    "LMStreamAssemblyError": "rejected",
    "LMTimeoutError": "timeout",
    "LMTransportError": "connection",
    "LMUnexpectedError": "rejected",
    "LMUnsupportedFeatureError": "rejected",
    "LMUnsupportedModelError": "rejected",
}

LM15 = {
    "AuthError": "auth",
    "BillingError": "rejected",
    "CapabilityError": "rejected",
    "CollectionLimitError": "rejected",
    "ConfigurationError": "rejected",
    "ContextLengthError": "context_overflow",
    "InvalidRequestError": "rejected",
    "LockTimeoutError": "rejected",
    "NotConfiguredError": "rejected",
    "ProviderError": "rejected",
    "RateLimitError": "rate_limit",
    "ServerError": "server",
    "StreamAssemblyError": "rejected",
    "TimeoutError": "timeout",
    "ToolDerivationError": "rejected",
    "TransportError": "connection",
    "UnsupportedFeatureError": "rejected",
    "UnsupportedModelError": "rejected",
}


def made(cls: type[Exception]) -> Exception:
    if cls is exceptions.AdapterParseError:
        return cls("JSONAdapter", AnswerFromPassages, "嗯……")
    if issubclass(cls, exceptions.ContextWindowExceededError):
        return cls(message="too long")
    return cls("what happened")


def test_every_error_of_dspy_is_in_the_table() -> None:
    found = {n for n, cls in inspect.getmembers(exceptions, inspect.isclass) if issubclass(cls, dspy.DSPyError)}
    assert found - {"DSPyError"} == set(DSPY)


def subclasses(cls: type) -> set[type]:
    return {found for child in cls.__subclasses__() for found in {child, *subclasses(child)}}


def test_every_error_of_lm15_is_in_the_table_or_is_one_of_its_kinds() -> None:
    translated = tuple(source for source, _ in ERROR_MAPPING)
    assert {cls.__name__ for cls in translated} <= set(LM15)
    assert [cls for cls in subclasses(lm15.LM15Error) if not issubclass(cls, translated)] == []


@pytest.mark.parametrize(("name", "kind"), DSPY.items())
def test_an_error_of_dspy_has_its_kind(name: str, kind: str) -> None:
    assert failure_kind(made(getattr(exceptions, name))) == kind


@pytest.mark.parametrize(("name", "kind"), LM15.items())
def test_an_error_of_lm15_has_its_kind_after_dspy_has_wrapped_it(name: str, kind: str) -> None:
    wrapped = wrap_error(getattr(lm15, name)("what happened"), model="x")
    assert isinstance(wrapped, dspy.DSPyError), "what `ask` catches"
    assert failure_kind(wrapped) == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ReplyTruncated("x"), "truncated"),
        (ReplyEmpty("x", code="empty"), "empty"),
        (Deadline("x", code="deadline"), "deadline"),
        (Deadline("x", code="budget"), "budget"),
        (wrap_error(ValueError("a fault of the engine"), model="x"), "rejected"),
    ],
)
def test_our_own_engine_errors_have_their_kind(error: Exception, kind: str) -> None:
    assert isinstance(error, dspy.DSPyError)
    assert failure_kind(error) == kind


def test_the_tables_use_the_closed_set_of_kinds() -> None:
    own = {"truncated", "empty", "deadline", "budget"}
    assert set(DSPY.values()) | set(LM15.values()) | own == set(FAILURES)


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^([│├└─ ]*)(\w*Error|Store\w+)\b", line)
        if found:
            depth = len(found[1])
            while stack and stack[-1][0] >= depth:
                stack.pop()
            drawn[found[2]] = stack[-1][1] if stack else "Exception"
            stack.append((depth, found[2]))
    real = {
        name: cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    }
    assert drawn == real


@pytest.mark.parametrize(
    ("error", "field", "value"),
    [
        (errors.LanguageModelError("m", kind="timeout", role="judge"), "kind", "timeout"),
        (errors.LanguageModelError("m", kind="timeout", role="judge"), "role", "judge"),
        (errors.StoreUnavailable("m", store="milvus"), "store", "milvus"),
        (errors.DocumentError("m", path="a.md"), "path", "a.md"),
        (errors.SettingsError("m", hint="do this"), "hint", "do this"),
    ],
)
def test_errors_carry_fields(error: Any, field: str, value: str) -> None:
    assert getattr(error, field) == value
    assert error.message == str(error) == "m"


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    error = errors.missing_package("sentence-transformers", "torch")
    assert "sentence-transformers" in error.message
    assert error.hint == "pip install 'adaptive-rag[torch]'"
