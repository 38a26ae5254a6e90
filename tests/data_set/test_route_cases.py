"""The routing cases keep what the data card says of them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from data.loading import DataError, load_cases, load_route_cases
from data.schema import RouteCase
from programs.rewriter import canonical
from signatures.vocabulary import INTENTS

CARD = (Path(__file__).resolve().parents[2] / "data" / "README.md").read_text(encoding="utf-8")


def test_there_are_enough_cases_of_every_intent_and_language() -> None:
    cases = load_route_cases()
    intents = Counter(case.intent for case in cases)
    assert len(cases) >= 700
    assert all(intents[intent] >= 100 for intent in INTENTS)
    assert sum(case.clarify for case in cases) >= 100
    assert sum(case.lang == "en" for case in cases) >= 0.15 * len(cases)


def test_a_group_is_in_one_split_and_no_question_stands_in_two() -> None:
    cases = load_route_cases()
    splits: dict[str, set[str]] = {}
    for case in cases:
        splits.setdefault(case.group, set()).add(case.split)
    assert all(len(found) == 1 for found in splits.values())
    seen: dict[tuple[str, str], str] = {}
    for case in cases:
        key = (canonical(case.question), canonical(case.history))
        assert seen.setdefault(key, case.split) == case.split, case.id


def test_the_cases_that_started_the_project_are_there() -> None:
    known = {case.question: case.intent for case in load_route_cases()}
    assert known["公司每月提供的话费补贴金额是多少元？"] == "FACT_LOOKUP"
    assert known["你吃饭了不？"] == "CHIT_CHAT"
    assert any("步行出差" in question and "最高荣誉" in question for question in known)


def test_the_counts_of_the_card_are_those_of_the_file() -> None:
    cases = load_route_cases()
    for split in ("train", "dev", "test"):
        assert f"| {split} | {sum(case.split == split for case in cases)} |" in CARD
    assert f"{len(cases)} 条" in CARD


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"intent": "FACT"}, "intent"),
        ({"split": "validation"}, "split"),
        ({"question": ""}, "question"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path: Path, change: dict[str, object], named: str) -> None:
    good = load_route_cases()[0].model_dump()
    path = tmp_path / "route.jsonl"
    path.write_text("\n".join([json.dumps(good), json.dumps({**good, "id": "x", **change})]), encoding="utf-8-sig")
    with pytest.raises(DataError, match=rf"route\.jsonl:2: .*{named}"):
        load_cases(path, RouteCase)


def test_a_repeated_id_and_broken_json_are_named(tmp_path: Path) -> None:
    line = load_route_cases()[0].model_dump_json()
    path = tmp_path / "route.jsonl"
    path.write_text(f"{line}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match="twice"):
        load_cases(path, RouteCase)
    path.write_text(f"{line}\n{{", encoding="utf-8")
    with pytest.raises(DataError, match=r":2: no JSON"):
        load_cases(path, RouteCase)
