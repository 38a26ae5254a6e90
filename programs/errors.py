"""What can go wrong, as a tree. Every error says what to do next.

AdaptiveRAGError
├── SettingsError              a setting is missing or wrong; names the variable
├── QuestionError              the question cannot be worked with (used by the command line only)
├── LanguageModelError         a language model gave nothing usable; carries a FailureKind
├── ModelFileError             weights are missing, wrong or cannot be fetched
├── StoreError                 a store failed
│   ├── StoreUnavailable       down, refuses, or too slow
│   ├── StoreLocked            another process holds the file
│   └── StoreMismatch          wrong schema, embedder or server version
├── DocumentError              a file cannot be read or indexed
├── PlanError                  a retrieval plan has a wrong key or value
├── CompiledStateError         a compiled state does not fit this program
└── MissingPackageError        an optional package is needed; names the install command

No class here imports a library: `programs.lm` and the stores translate the
errors of the libraries they own, and `tests/programs/test_errors.py` proves
that each of those has a counterpart.
"""

from signatures.vocabulary import FailureKind


class AdaptiveRAGError(Exception):
    """Base of all errors of this project.

    Args:
        message: What happened.
        hint: What the user can do about it; printed on a line of its own.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(AdaptiveRAGError):
    """A setting is missing or wrong."""


class QuestionError(AdaptiveRAGError):
    """The question cannot be worked with."""


class LanguageModelError(AdaptiveRAGError):
    """A language model gave nothing usable.

    Args:
        kind: Why, as one of the closed set.
        role: `router`, `generator`, `judge` or `reflection`; "" where unknown.
    """

    def __init__(self, message: str, *, kind: FailureKind, role: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind: FailureKind = kind
        self.role = role


class ModelFileError(AdaptiveRAGError):
    """Weights are missing, wrong or cannot be fetched."""


class StoreError(AdaptiveRAGError):
    """A store failed.

    Args:
        store: Name of the store, such as `milvus` or `tantivy`.
    """

    def __init__(self, message: str, *, store: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.store = store


class StoreUnavailable(StoreError):
    """The store is down, refuses, or is too slow."""


class StoreLocked(StoreError):
    """Another process holds the store's file."""


class StoreMismatch(StoreError):
    """The store has another schema, embedder or server version than this program needs."""


class DocumentError(AdaptiveRAGError):
    """A file cannot be read or indexed.

    Args:
        path: The file.
    """

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class PlanError(AdaptiveRAGError):
    """A retrieval plan has a wrong key or value."""


class CompiledStateError(AdaptiveRAGError):
    """A compiled state does not fit this program."""


class MissingPackageError(AdaptiveRAGError):
    """An optional package is needed."""


def missing_package(package: str, extra: str) -> MissingPackageError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return MissingPackageError(
        f"The package {package!r} is needed for this and is not installed.",
        hint=f"pip install 'adaptive-rag[{extra}]'",
    )
