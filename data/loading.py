"""Reads the labelled cases, line by line, through the schema."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from data.schema import Case, RouteCase

C = TypeVar("C", bound=Case)
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
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
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
    """The routing cases."""
    return load_cases(FOLDER / "route.jsonl", RouteCase)
