"""Records that cross a seam: what a stage hands to the next, and to the user.

All of them are frozen pydantic models: validated where they are made, written
with `model_dump(mode="json")`, read back with `model_validate`.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from signatures.vocabulary import (
    Decision,
    FailureKind,
    Intent,
    JudgeName,
    Status,
    StopReason,
    Strategy,
)

Probability = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class Record(BaseModel):
    """Base of all records: immutable, and unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Passage(Record):
    """A piece of a document, as indexed and as shown.

    Attributes:
        id: `document_id#` and ten hexadecimal digits of the passage's content;
            the same in every store, unchanged when other parts of the document change.
        document_id: Path below the indexed folder, with that folder's name first.
        title: Title of the document.
        section: Headings above the passage, joined by " > "; empty at the top.
        category: The document's category; the only field that filters.
        text: What the reader sees; never folded or normalised.
        language: Programming language for code, else "".
        start_line: First line in the source file, from 1; 0 where lines mean nothing (PDF, DOCX).
        end_line: Last line, inclusive.
    """

    id: str
    document_id: str
    title: str = ""
    section: str = ""
    category: str = ""
    text: str
    language: str = ""
    start_line: int = Field(default=0, ge=0)
    end_line: int = Field(default=0, ge=0)

    @property
    def heading(self) -> str:
        """Title and section as one line, for prompts and for citations."""
        return f"{self.title} > {self.section}" if self.section else self.title

    @property
    def location(self) -> str:
        """`document_id`, for code with its lines: `sdk/client.py:10-24`."""
        return f"{self.document_id}:{self.start_line}-{self.end_line}" if self.language else self.document_id


class Hit(Record):
    """A passage that a search found.

    Attributes:
        passage: The passage.
        score: Final score in [0, 1], higher is better, comparable within one search only.
        routes: Names of the routes that found it, in the order of the plan.
        raw: Scores before fusion by route (dense: cosine in [-1, 1]; text: BM25, from 0 up;
            `rerank`: the model's own output).
    """

    passage: Passage
    score: float = Field(ge=0.0, le=1.0, allow_inf_nan=False)
    routes: tuple[str, ...] = ()
    raw: dict[str, float] = Field(default_factory=dict)


class Verdict(Record):
    """What a judge found: a score, or UNKNOWN with the reason.

    Attributes:
        judge: Which judge.
        score: Probability in [0, 1] that the property holds; None is UNKNOWN.
        passed: Whether the score reaches the judge's threshold; never true for UNKNOWN.
        reason: One sentence, for the rewriter and for the user.
        source: `lm` a language model's label; `rule` decided without a call;
            `check` the deterministic check that stands in for a judge that failed.
        error_kind: Why the language model gave no verdict, where it did not.
        cached: Whether the language model said so earlier, about the same text, and was not asked again.
        passage_scores: Relevance only: score by passage id, None where unknown.
        evidence: Features that were weighed, by name.
    """

    judge: JudgeName
    score: Probability | None
    passed: bool
    reason: str = ""
    source: Literal["lm", "rule", "check"] = "lm"
    error_kind: FailureKind | None = None
    cached: bool = False
    passage_scores: dict[str, Probability | None] = Field(default_factory=dict)
    evidence: dict[str, float] = Field(default_factory=dict)

    @property
    def unknown(self) -> bool:
        return self.score is None

    @model_validator(mode="after")
    def _unknown_never_passes(self) -> Self:
        if self.score is None and self.passed:
            raise ValueError("an UNKNOWN verdict cannot pass")
        return self


class RouteDecision(Record):
    """Where a question goes, and how sure the router is.

    Attributes:
        intent: The class of the question.
        confidence: Probability in [0, 1] that `intent` is right; 0 where the reply could not be used.
        reasoning: One sentence.
        strategy: The strategy that will run (after `resolve_strategy`).
        clarification_questions: Two or three concrete questions when `strategy` is
            `clarify_needed`, else empty.
        source: `lm`, `classifier`, `rule` (decided from the characters alone) or `user` (forced).
        error_kind: Set when the language model's reply could not be used.
    """

    intent: Intent
    confidence: Probability
    reasoning: str = ""
    strategy: Strategy
    clarification_questions: tuple[str, ...] = ()
    source: Literal["lm", "classifier", "rule", "user"] = "lm"
    error_kind: FailureKind | None = None


class Citation(Record):
    """One source of an answer.

    Attributes:
        number: The number in the answer's text, from 1.
        passage_id: Id of the passage.
        heading: Title and section.
        location: Document, for code with lines.
    """

    number: int = Field(ge=1)
    passage_id: str
    heading: str
    location: str


class Usage(Record):
    """What a request, or a part of it, cost.

    Attributes:
        lm_calls: Requests sent to language models, retries included.
        prompt_tokens: As the endpoint reported.
        cached_tokens: Of these, the ones the endpoint took from its prefix cache.
        completion_tokens: As the endpoint reported.
        cost: Money for these tokens, in the currency of the prices; None where the price of a language model
            that was asked, or what it used, is unknown. 0 for the embedded one.
        seconds: Wall time.
        lm_seconds: Wall time with at least one language model call in flight.
        store_seconds: Wall time with at least one store or embedding call in flight.
    """

    lm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    seconds: float = 0.0
    lm_seconds: float = 0.0
    store_seconds: float = 0.0


class HopTrace(Record):
    """Everything that one turn of the loop did.

    Attributes:
        hop: From 1.
        query: What was searched.
        parts: Sub-questions that were searched side by side (deep_search), else empty.
        answer: What was written, "" when nothing was.
        hits: What was found, best first.
        kept: Ids of the passages that the relevance judge left.
        shown: Ids of the passages that the answer rests on, in the order of their numbers: those that were
            kept, or the first of them where they do not fit.
        overlapped: Whether an answer was written while the passages were judged.
        written_again: Whether that answer did not count, as it left out a passage that was kept or cited
            one that was not.
        relevance, grounding, utility: The verdicts; None where a judge did not run.
        decision: How the hop ended.
        rewritten_query: The next hop's query, "" when there is none.
        retry_calls: Language model calls of this hop that looked for what to search next.
        degraded: Parts that failed without ending the hop, such as `text: timeout`.
        outages: Routes of retrieval that failed: then "not found" may not be said.
        usage: What the hop cost; without the time of a search that was begun while the router was asked, which
            is part of the request's.
    """

    hop: int = Field(ge=1)
    query: str
    parts: tuple[str, ...] = ()
    answer: str = ""
    hits: tuple[Hit, ...] = ()
    kept: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    overlapped: bool = False
    written_again: bool = False
    relevance: Verdict | None = None
    grounding: Verdict | None = None
    utility: Verdict | None = None
    decision: Decision
    rewritten_query: str = ""
    retry_calls: int = Field(default=0, ge=0)
    degraded: tuple[str, ...] = ()
    outages: tuple[str, ...] = ()
    usage: Usage = Usage()


class Answer(Record):
    """The whole result of a request: what `ask --json` prints.

    Attributes:
        question: As the user wrote it (invalid characters replaced).
        answer: Text for the user, in the question's language.
        status: What kind of answer this is.
        stop_reason: Why the program stopped.
        decision: The router's decision.
        strategy: The strategy that ran.
        citations: Sources of the answer, in the order of their numbers.
        passages: Passages the answer was written from.
        trace: One entry for each hop; empty when nothing was retrieved.
        best_hop: Number of the hop that was returned, 0 when there was none.
        degraded: What did not work, in words that a user can act on.
        usage: What the request cost.
    """

    question: str
    answer: str
    status: Status
    stop_reason: StopReason
    decision: RouteDecision
    strategy: Strategy
    citations: tuple[Citation, ...] = ()
    passages: tuple[Passage, ...] = ()
    trace: tuple[HopTrace, ...] = ()
    best_hop: int = Field(default=0, ge=0)
    degraded: tuple[str, ...] = ()
    usage: Usage = Usage()
