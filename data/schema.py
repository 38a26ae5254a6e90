"""The labelled cases as records: every field checked, an error names file, line and field."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from signatures.vocabulary import Intent

Split = Literal["train", "dev", "test"]


class Case(BaseModel):
    """What all cases share.

    Attributes:
        id: Unique in its file.
        group: Paraphrases of one thing share it; a group is in one split.
        split: train to fit, dev to choose, test to report.
        kind: Difficulty or kind of failure.
        origin: `written` for this project, or where a bad case came from.
        lang: `zh` or `en`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
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
