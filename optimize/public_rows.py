"""Public labelled questions and judgements in a folder of the user's, as records.

One JSON Lines file a task, `TASK.jsonl`. Nothing of such a folder is part of this project: it only measures.
Fields that are not named here are ignored, as every source brings its own.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field

from data.loading import load_cases
from data.schema import GroundingCase, Identified, RelevanceCase, Shown, UtilityCase
from optimize.recording import JudgeCase
from signatures.vocabulary import Intent, JudgeName

Task = Literal["route", "clarify", "relevance", "grounding", "utility"]
Text = Annotated[str, Field(min_length=1)]
MOST_SHARING = 5
"""Rows that may share a question and so rise and fall together. A question of more rows is the form in which a
source puts all it has ("what does the text say?") and makes them no more alike."""


class PublicRow(Identified):
    """What all rows share.

    Attributes:
        question: As typed.
        lang: `zh` or `en`.
        source: Data set that it comes from.
        quick: Whether it belongs to the stratified part for quick runs.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
    task: ClassVar[Task]

    question: Text
    lang: Literal["zh", "en"]
    source: str = "-"
    quick: bool = False


class RouteRow(PublicRow):
    """A question and its class."""

    task = "route"

    intent: Intent


class ClarifyRow(PublicRow):
    """A question, and whether it must be asked back (`label` 1); `history` holds earlier turns, if any."""

    task = "clarify"

    history: tuple[dict[str, Any], ...] = ()
    label: Literal[0, 1]


class JudgeRow(PublicRow):
    """Something to judge, and the right verdict (`label` 1 passes)."""

    label: Literal[0, 1]

    def case(self, group: str) -> JudgeCase:
        """The row as the judges' cases are; it is never trained on, hence `test`."""
        raise NotImplementedError

    def _shared(self, group: str) -> dict[str, Any]:
        more = {"split": "test", "kind": self.source, "origin": self.source, "passed": bool(self.label)}
        return {"id": self.id, "group": group, "lang": self.lang, "question": self.question, **more}


class RelevanceRow(JudgeRow):
    """Does its one passage hold what the question asks for?"""

    task = "relevance"

    passages: tuple[Text] = Field()

    def case(self, group: str) -> RelevanceCase:
        return RelevanceCase(passage=Shown(text=self.passages[0]), **self._shared(group))


class GroundingRow(JudgeRow):
    """Does everything in an answer follow from the passages?"""

    task = "grounding"

    passages: tuple[Text, ...] = Field(min_length=1)
    answer: str

    def case(self, group: str) -> GroundingCase:
        passages = tuple(Shown(text=text) for text in self.passages)
        return GroundingCase(passages=passages, answer=_some(self.answer), **self._shared(group))


class UtilityRow(JudgeRow):
    """Does an answer answer its question?"""

    task = "utility"

    answer: str

    def case(self, group: str) -> UtilityCase:
        return UtilityCase(answer=_some(self.answer), **self._shared(group))


R = TypeVar("R", bound=PublicRow)
JUDGE_ROWS: dict[JudgeName, type[JudgeRow]] = {
    "relevance": RelevanceRow,
    "grounding": GroundingRow,
    "utility": UtilityRow,
}


def load_rows(folder: Path, record: type[R], *, quick: bool = False, limit: int | None = None) -> list[R]:
    """The rows of a task.

    Args:
        folder: Holds the file.
        record: Of the task.
        quick: Only the rows that are marked so.
        limit: Most rows; the first ones.

    Raises:
        DataError: A line is no JSON, has a wrong field, or repeats an id.
        FileNotFoundError: The folder has no file of this task.
    """
    rows = load_cases(folder / f"{record.task}.jsonl", record)
    return [row for row in rows if row.quick or not quick][:limit]


def row_groups(rows: Sequence[PublicRow]) -> list[str]:
    """The group of each row: its question, where not too many share it."""
    shared = Counter(row.question for row in rows)
    return [row.question if shared[row.question] <= MOST_SHARING else row.id for row in rows]


def _some(answer: str) -> str:
    # Our own cases always have an answer; to the judge, a blank is an empty one.
    return answer or " "
