"""What a language model writes for the `rewritten` and `hypothetical` routes, kept: it costs seconds a question."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from types import MappingProxyType

from programs import background
from programs.errors import LanguageModelError
from programs.lm import RoleLMs
from programs.module import Resources
from programs.retrieval.embedding import load_embedder
from programs.retrieval.pipeline import Searcher
from programs.rewriter import Rewriter
from programs.settings import Settings


class Phrases:
    """Paraphrases and imagined passages by question, in a file per language model.

    Args:
        settings: Which language model, and where files are kept.
    """

    def __init__(self, settings: Settings) -> None:
        lms = RoleLMs(settings)
        resources = Resources(
            lms=lms,
            searcher=Searcher({}, load_embedder(settings.embedder)),
            settings=settings,
            thresholds=MappingProxyType({}),
        )
        self._rewriter = Rewriter(resources)
        name = hashlib.sha256(f"{lms.identity('generator')}{_wording()}".encode()).hexdigest()[:16]
        self._path = settings.home / "phrases" / f"{name}.json"
        self._known: dict[str, str] = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}

    def formal(self, question: str) -> str:
        """The question as a handbook would word it; "" when there was no usable reply."""
        return self._get(f"formal {question}", self._rewriter.formal, question)

    def hypothetical(self, question: str) -> str:
        """A passage that could answer it; "" when there was no usable reply."""
        return self._get(f"hypothetical {question}", self._rewriter.hypothetical, question)

    def _get(self, key: str, write: Callable[[str], Awaitable[str]], question: str) -> str:
        if key not in self._known:
            try:
                self._known[key] = background.run(write(question))  # type: ignore[arg-type]
            except LanguageModelError as error:
                if error.kind in ("connection", "auth", "timeout"):
                    raise
                self._known[key] = ""
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._known, ensure_ascii=False), encoding="utf-8")
        return self._known[key]


def _wording() -> str:
    from signatures.rewriting import ParaphraseQuestion, WriteHypotheticalPassage

    return f"{ParaphraseQuestion.instructions}{WriteHypotheticalPassage.instructions}"
