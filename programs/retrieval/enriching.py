"""Lets a language model write questions, and where asked a summary, for each passage, once.

Every reply is kept at once, so that an interrupted run goes on where it stopped.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dspy

from programs import background
from programs.errors import LanguageModelError
from programs.lm import RoleLMs, ask
from programs.retrieval.enrichment import WRITTEN, Enrichment, EnrichmentCache, enrichment_key
from signatures.enriching import AskPassageQuestions, SummarizePassage
from signatures.records import Passage
from signatures.vocabulary import FailureKind

PROMPT_TOKENS = 250
"""Of one call, besides the passage: the instruction and the fields."""
COMPLETION_TOKENS = 100
"""Of one call, usually."""
TOKENS_PER_BYTE = 0.28
"""Of Qwen's tokenizer on Chinese and English in UTF-8; other tokenizers need up to half as many more."""
BATCH = 16
"""Passages that are asked about at once; the endpoint's own limit holds below."""
FATAL: tuple[FailureKind, ...] = ("auth", "connection", "timeout", "rate_limit", "server", "rejected")
"""Failures that the next passage would meet as well."""

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class EnrichmentCost:
    """What enriching passages will cost.

    Attributes:
        passages: Passages without an enrichment of this model.
        cached: Passages that have one.
        calls: Requests to the language model.
        prompt_tokens, completion_tokens: Estimates.
        money: Estimate, by the price of the language model; None where that is unknown.
        model: Which language model.
    """

    passages: int
    cached: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    money: float | None
    model: str


class Enricher:
    """Writes enrichments with the generator's language model.

    Args:
        lms: The language models.
        cache: Where they are kept.
        summaries: Whether to have summaries written as well, for a second call; no plan asks for them by
            default.
    """

    def __init__(self, lms: RoleLMs, cache: EnrichmentCache, *, summaries: bool = False) -> None:
        self._summaries = summaries
        self._lms = lms
        self._cache = cache
        self._model = lms.identity("generator")
        self._questions = dspy.Predict(AskPassageQuestions)
        self._summary = dspy.Predict(SummarizePassage)

    def missing(self, passages: Sequence[Passage]) -> list[Passage]:
        """Passages about which neither this model nor people have written, equal ones once."""
        known = self._cache.by_model(self._model) | self._cache.by_model(WRITTEN)
        wanted = {enrichment_key(passage): passage for passage in passages}
        return [passage for key, passage in wanted.items() if key not in known]

    def cost(self, passages: Sequence[Passage]) -> EnrichmentCost:
        """What `run` would spend on passages."""
        missing = self.missing(passages)
        read = sum(TOKENS_PER_BYTE * len(f"{p.heading}{p.text}".encode("utf-8", "replace")) for p in missing)
        per_passage = 2 if self._summaries else 1
        calls = per_passage * len(missing)
        tokens = {"prompt": round(per_passage * read) + PROMPT_TOKENS * calls, "completion": COMPLETION_TOKENS * calls}
        price = self._lms.endpoints("generator")[0].price
        return EnrichmentCost(
            passages=len(missing),
            cached=len({enrichment_key(passage) for passage in passages}) - len(missing),
            calls=calls,
            prompt_tokens=tokens["prompt"],
            completion_tokens=tokens["completion"],
            money=None if price is None else price.amount(**tokens),
            model=self._model,
        )

    def run(self, passages: Sequence[Passage], on_progress: ProgressCallback | None = None) -> dict[str, str]:
        """Write what is missing; gives the passages that failed, with the reason, by id.

        A passage whose reply is unusable is passed over.

        Raises:
            LanguageModelError: The language model cannot be reached; what was written before is kept.
        """
        failed: dict[str, str] = {}
        missing = self.missing(passages)
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            fatal: LanguageModelError | None = None
            for passage, error in zip(batch, background.run(self._write_all(batch)), strict=True):
                if error is not None:
                    failed[passage.id] = error.message
                    fatal = error if error.kind in FATAL else fatal
            if on_progress is not None:
                on_progress("问题与摘要", min(start + BATCH, len(missing)), len(missing))
            if fatal is not None:
                raise fatal
        return failed

    async def _write_all(self, passages: Sequence[Passage]) -> list[LanguageModelError | None]:
        return await asyncio.gather(*(self._write(passage) for passage in passages))

    async def _write(self, passage: Passage) -> LanguageModelError | None:
        lm = self._lms["generator"]
        inputs = {"passages": passage.text, "heading": passage.heading}
        try:
            asked = await ask(self._questions, lm, role="generator", **inputs)
            # After the questions, so that it finds the passage in the prefix cache.
            summary = await ask(self._summary, lm, role="generator", **inputs) if self._summaries else None
        except LanguageModelError as error:
            return error
        record = Enrichment(
            key=enrichment_key(passage),
            model=self._model,
            questions=tuple(question.strip() for question in asked.questions),
            summary=summary.summary.strip() if summary is not None else "",
        )
        self._cache.add([record])
        return None
