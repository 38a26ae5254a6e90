"""Reads the labelled cases, line by line, through the schema."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from data.schema import (
    GroundingCase,
    Identified,
    QuestionCase,
    RelevanceCase,
    RewriteCase,
    RouteCase,
    UtilityCase,
)

C = TypeVar("C", bound=Identified)
FOLDER = Path(__file__).parent / "bad_cases"


class DataError(ValueError):
    """A file of cases is wrong; the message names file, line and field."""


def load_cases(path: Path, record: type[C]) -> list[C]:
    """All cases of a JSON Lines file.

    Raises:
        DataError: A line is no JSON, has a wrong field, or repeats an id.
    """
    cases: list[C] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            case = record.model_validate(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path.name}:{number}: no JSON: {error.msg}") from error
        except ValidationError as error:
            fields = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise DataError(f"{path.name}:{number}: {fields}") from error
        if case.id in seen:
            raise DataError(f"{path.name}:{number}: the id {case.id!r} stands twice")
        seen.add(case.id)
        cases.append(case)
    return cases


def load_route_cases() -> list[RouteCase]:
    """Questions with their intent."""
    return load_cases(FOLDER / "route.jsonl", RouteCase)


def load_question_cases() -> list[QuestionCase]:
    """Questions with their gold passages and facts."""
    return load_cases(FOLDER / "qa.jsonl", QuestionCase)


def load_relevance_cases() -> list[RelevanceCase]:
    """Question and passage, with the right verdict."""
    return load_cases(FOLDER / "relevance.jsonl", RelevanceCase)


def load_grounding_cases() -> list[GroundingCase]:
    """Passages and answer, with the right verdict."""
    return load_cases(FOLDER / "grounding.jsonl", GroundingCase)


def load_utility_cases() -> list[UtilityCase]:
    """Question and answer, with the right verdict."""
    return load_cases(FOLDER / "utility.jsonl", UtilityCase)


def load_rewrite_cases() -> list[RewriteCase]:
    """Queries that failed, with what should have been found."""
    return load_cases(FOLDER / "rewrite.jsonl", RewriteCase)
