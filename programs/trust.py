"""Whether the judges can be believed, as `programs.canaries` found; kept in the home, read by every request.

A judge that failed its planted cases stays marked until a later run of at least the same set passes. The mark
belongs to a language model with a prompt: another of either is another judge, which nobody has looked at yet.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import dspy
from filelock import FileLock
from pydantic import Field, ValidationError

from programs.opinions import judge_key
from signatures.records import Probability, Record
from signatures.vocabulary import JudgeName

FILE = "judges.json"
_NAMES: Mapping[JudgeName, str] = {"relevance": "相关性", "grounding": "依据", "utility": "有用性"}


class JudgeTrust(Record):
    """What the planted cases said of one judge.

    Attributes:
        judge: Which.
        trusted: False where it failed; None where too few cases could be asked.
        full: Whether it was the full set.
        cases: Planted cases that were looked at.
        failed: Ids of those that it missed, with what was wrong.
        verdicts: Balanced accuracy of its verdicts where a language model has a say; 0.5 is guessing.
        separation: Probability that the language model alone prefers a right case to a wrong one; 0.5 is guessing.
        lm: Identity of the language model.
    """

    judge: JudgeName
    trusted: bool | None
    full: bool
    cases: int = 0
    failed: tuple[str, ...] = ()
    verdicts: Probability | None = None
    separation: Probability | None = None
    lm: str = ""


class _Marks(Record):
    """The file: what was found of each judge, by `judge_key`."""

    format: int = 1
    judges: dict[str, JudgeTrust] = Field(default_factory=dict)


def remember(home: Path, found: Mapping[str, JudgeTrust]) -> None:
    """Keep what was found, by `judge_key`.

    What says nothing (`trusted` None) changes nothing, and the short set does not clear what the full one found.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home / FILE
    with FileLock(home / f"{FILE}.lock"):
        known = _read(path) or _Marks()
        judges = dict(known.judges)
        for key, trust in found.items():
            before = judges.get(key)
            clears = before is not None and before.trusted is False and before.full and not trust.full
            if trust.trusted is None or (trust.trusted and clears):
                continue
            judges[key] = trust
        text = _Marks(judges=judges).model_dump_json(indent=1)
        with NamedTemporaryFile("w", encoding="utf-8", dir=home, delete=False) as file:
            file.write(text)
        # In one step: a request that reads meanwhile sees the old file or the new one.
        os.replace(file.name, path)


def notes(home: Path, judges: Sequence[tuple[JudgeName, dspy.Predict]], lm: str) -> list[str]:
    """A sentence for the user about each of these judges that is marked; [] where none is.

    Args:
        home: Where marks are kept.
        judges: Judges by name, with the prompts that run now.
        lm: Identity of their language model.
    """
    path = home / FILE
    if not path.exists():
        return []
    marks = _read(path)
    if marks is None:
        # Whether a judge is marked cannot be known, so nobody may be told that none is.
        return [f"评审不可信：检查结果（{path}）读不出来，请重新运行 adaptive-rag doctor --canaries"]
    found = [(name, marks.judges.get(judge_key(name, predict, lm))) for name, predict in judges]
    return [
        f"评审不可信：{_NAMES[name]}评审没有通过预设样例（{len(trust.failed)} 处不对），它的结论仅供参考；"
        f"换一个评审模型，或用 adaptive-rag doctor --canaries 复查"
        for name, trust in found
        if trust is not None and trust.trusted is False
    ]


def _read(path: Path) -> _Marks | None:
    """What the file says; None where it says nothing that can be understood."""
    try:
        return _Marks.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _Marks()
    except (OSError, ValidationError):
        return None
