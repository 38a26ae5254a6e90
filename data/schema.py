"""The labelled cases as records: every field checked, an error names file, line and field."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from signatures.vocabulary import Intent

Split = Literal["train", "dev", "test"]


class Strict(BaseModel):
    """Immutable, and unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Identified(BaseModel):
    """A record of a file.

    Attributes:
        id: Unique in its file.
    """

    id: str = Field(min_length=1)


class Case(Strict, Identified):
    """What all cases share.

    Attributes:
        group: Paraphrases of one thing share it; a group is in one split.
        split: train to fit, dev to choose, test to report.
        kind: Difficulty or kind of failure.
        origin: `written` for this project, or where a bad case came from.
        lang: `zh` or `en`.
    """

    group: str = Field(min_length=1)
    split: Split
    kind: str = Field(min_length=1)
    origin: str = Field(min_length=1)
    lang: Literal["zh", "en"]


class RouteCase(Case):
    """A question and where it goes.

    Attributes:
        history: Earlier turns, "" for none.
        question: As typed.
        intent: The right class.
        clarify: Whether the right reaction is to ask back.
    """

    history: str
    question: str = Field(min_length=1)
    intent: Intent
    clarify: bool


class Gold(Strict):
    """A place in the sample documents or the sample code.

    Attributes:
        document_id: Path below `data/`, as in the index.
        quote: Words that stand exactly once in that file; the passage that holds them is meant.
            A quote outlives another way of cutting documents, an id would not.
    """

    document_id: str = Field(min_length=1)
    quote: str = Field(min_length=2)


class Shown(Strict):
    """A passage as a judge reads it: a place in the sample documents, or a text of its own.

    Attributes:
        document_id, quote: As in `Gold`; or both "".
        heading, text: Title with section, and the text, of a passage about something else; or both "".
    """

    document_id: str = ""
    quote: str = ""
    heading: str = ""
    text: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.document_id and self.quote) == bool(self.text) or bool(self.document_id) != bool(self.quote):
            raise ValueError("either document_id with quote, or text")
        return self


class QuestionCase(Case):
    """A question with what is known about its answer.

    Attributes:
        question: As typed.
        intent: Its class.
        category: Filter that was set, or None.
        answerable: Whether the sample knowledge base holds the answer.
        facts: What a right answer must contain: of each list, one spelling.
        gold: Where the answer stands; empty when it stands nowhere. Two passages may hold the same fact:
            `either` says so.
        either: Whether one of `gold` is enough.
        answer: A right answer.
    """

    question: str = Field(min_length=1)
    intent: Intent
    category: str | None = None
    answerable: bool
    facts: tuple[tuple[str, ...], ...] = ()
    gold: tuple[Gold, ...] = ()
    either: bool = False
    answer: str = ""

    @model_validator(mode="after")
    def _gold_when_answerable(self) -> Self:
        if self.answerable and not (self.gold and self.facts):
            raise ValueError("an answerable question needs gold and facts")
        return self


class RelevanceCase(Case):
    """Does one passage hold what the question asks for?

    Attributes:
        question: As typed.
        passage: What was found.
        passed: The right verdict.
    """

    question: str = Field(min_length=1)
    passage: Shown
    passed: bool


class GroundingCase(Case):
    """Is every statement of an answer in the passages?

    Attributes:
        question: As typed.
        passages: What the answer was written from, in order.
        answer: The answer to judge.
        passed: The right verdict.
    """

    question: str = Field(min_length=1)
    passages: tuple[Shown, ...] = Field(min_length=1)
    answer: str = Field(min_length=1)
    passed: bool


class UtilityCase(Case):
    """Does an answer answer its question, whether true or not?

    Attributes:
        question: As typed.
        answer: The answer to judge.
        passed: The right verdict.
    """

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    passed: bool


class RewriteCase(Case):
    """A query that did not find the answer.

    Attributes:
        question: As typed.
        failed_query: What was searched.
        reasons: What the judges said of it.
        gold: Where the answer stands.
        reference: A query that a careful person would try next.
    """

    question: str = Field(min_length=1)
    failed_query: str = Field(min_length=1)
    reasons: str = Field(min_length=1)
    gold: tuple[Gold, ...] = Field(min_length=1)
    reference: str = Field(min_length=1)
