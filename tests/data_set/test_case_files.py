"""Every file of labelled cases keeps what its data card says: enough of each kind, nothing in two splits."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from datasets import load_dataset

from data.loading import (
    FOLDER,
    load_grounding_cases,
    load_question_cases,
    load_relevance_cases,
    load_rewrite_cases,
    load_route_cases,
    load_utility_cases,
)
from data.schema import Case, GroundingCase, RelevanceCase, UtilityCase
from optimize.gold import sample_passages
from programs.retrieval.tokens import fold
from signatures.vocabulary import INTENTS

DATA = Path(__file__).resolve().parents[2] / "data"
CARD = (DATA / "README.md").read_text(encoding="utf-8")
LOADERS: dict[str, Callable[[], Sequence[Case]]] = {
    "route": load_route_cases,
    "qa": load_question_cases,
    "relevance": load_relevance_cases,
    "grounding": load_grounding_cases,
    "utility": load_utility_cases,
    "rewrite": load_rewrite_cases,
}
LEAST = {"route": 700, "qa": 300, "relevance": 250, "grounding": 250, "utility": 250, "rewrite": 120}
NEAR = 0.8
"""Share of pairs of characters from which two questions are the same one in other words."""


@pytest.fixture(params=LOADERS)
def cases(request: pytest.FixtureRequest) -> tuple[str, Sequence[Case]]:
    return request.param, LOADERS[request.param]()


def pairs(text: str) -> frozenset[str]:
    plain = "".join(char for char in fold(text) if char.isalnum())
    return frozenset(f"{a}{b}" for a, b in pairwise(plain)) or frozenset([plain])


def test_there_are_enough_and_enough_in_english(cases: tuple[str, Sequence[Case]]) -> None:
    name, found = cases
    assert len(found) >= LEAST[name]
    assert sum(case.lang == "en" for case in found) >= 0.15 * len(found)


def test_a_group_is_in_one_split(cases: tuple[str, Sequence[Case]]) -> None:
    splits: dict[str, set[str]] = defaultdict(set)
    for case in cases[1]:
        splits[case.group].add(case.split)
    assert {len(found) for found in splits.values()} == {1}


def test_no_question_of_one_split_is_nearly_one_of_another(cases: tuple[str, Sequence[Case]]) -> None:
    found = [(case.id, case.split, pairs(case.question)) for case in cases[1]]  # type: ignore[attr-defined]
    near = [
        (a, b)
        for place, (a, split, own) in enumerate(found)
        for b, other, theirs in found[:place]
        if split != other and len(own & theirs) >= NEAR * len(own | theirs)
    ]
    assert near == []


def test_counts_and_digest_are_those_of_the_card(cases: tuple[str, Sequence[Case]]) -> None:
    name, found = cases
    splits = Counter(case.split for case in found)
    digest = hashlib.sha256((FOLDER / f"{name}.jsonl").read_bytes()).hexdigest()[:16]
    row = [f"`{name}.jsonl`", *(str(n) for n in (len(found), splits["train"], splits["dev"], splits["test"]))]
    assert f"| {' | '.join(row)} | {sum(case.lang == 'en' for case in found)} | `{digest}` |" in CARD


@pytest.mark.parametrize("load", [load_relevance_cases, load_grounding_cases, load_utility_cases])
def test_verdicts_are_balanced_in_every_split(
    load: Callable[[], Sequence[RelevanceCase | GroundingCase | UtilityCase]],
) -> None:
    found = load()
    for split in ("train", "dev", "test"):
        own = [case.passed for case in found if case.split == split]
        assert 0.45 <= sum(own) / len(own) <= 0.55
    assert len({case.kind for case in found}) >= 8
    assert any(case.kind == "injection" for case in found)


def test_every_shown_passage_is_one_of_the_index() -> None:
    known = sample_passages()
    for case in load_relevance_cases():
        assert known.shown(case.passage).text
    for case in load_grounding_cases():
        assert all(known.shown(one).text for one in case.passages)


def test_questions_are_of_every_intent_that_retrieves_and_some_cannot_be_answered() -> None:
    found = Counter(case.intent for case in load_question_cases())
    assert set(found) <= set(INTENTS)
    assert all(found[intent] >= 40 for intent in ("FACT_LOOKUP", "HOW_TO", "COMPARISON", "CODE_SEARCH"))
    assert sum(not case.answerable for case in load_question_cases()) >= 30
    assert sum(len(case.gold) > 1 and not case.either for case in load_question_cases()) >= 30


def test_the_library_of_datasets_reads_the_files(tmp_path: Path, cases: tuple[str, Sequence[Case]]) -> None:
    name, found = cases
    loaded = load_dataset("json", data_files=str(FOLDER / f"{name}.jsonl"), split="train", cache_dir=str(tmp_path))
    assert loaded["id"][:] == [case.id for case in found]


@pytest.mark.parametrize("folder", ["corpus", "code"])
def test_the_enrichment_is_of_the_passages_that_are_there(folder: str) -> None:
    from programs.retrieval.enrichment import enrichment_key, read_enrichments

    passages = [passage for passage in sample_passages().all() if passage.document_id.startswith(f"{folder}/")]
    written = {one.key: one for one in read_enrichments(DATA / folder / "enrichment.jsonl")}
    assert set(written) == {enrichment_key(passage) for passage in passages}
    assert all(len(set(one.questions)) >= 4 and one.summary for one in written.values())
