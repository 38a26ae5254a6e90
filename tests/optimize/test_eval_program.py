"""The end-to-end figures: kept answers, honest counts, and a comparison on the same cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from loop_scripts import NO, in_turn, judged
from scripted_lm import helpful

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize import eval_program
from optimize.eval_program import chosen, compared, read, report
from signatures.records import Answer, Passage

CASES = [case for case in load_question_cases() if case.split == "dev" and case.answerable and not case.category][:4]


def asked(make_rag: Any, answers: dict[str, str], **script: Any) -> dict[str, Answer]:
    # All of them stand in one passage: an answer with a number that stands nowhere is not told.
    passages = [Passage(id="all", document_id="d", text="\n".join([*answers.values(), "运费由买家承担。"]))]
    bench = make_rag(
        helpful(generate=lambda call: {"answer": answers[call.input("question")]}, **script),
        passages=passages,
        endless=True,
    )
    return {case.id: bench.ask(case.question, strategy="fast_retrieval") for case in CASES}


def right(case: QuestionCase) -> str:
    return "、".join(spellings[0] for spellings in case.facts)


@pytest.fixture
def before(make_rag: Any) -> dict[str, Answer]:
    return asked(make_rag, {case.question: "不清楚具体数字，大概如此。" for case in CASES}, grounding=NO)


@pytest.fixture
def after(make_rag: Any) -> dict[str, Answer]:
    return asked(make_rag, {case.question: right(case) for case in CASES}, grounding=NO)


def test_every_kind_is_among_the_first_few() -> None:
    cases = load_question_cases()
    kinds = {case.kind for case in cases}
    few = chosen(cases, len(kinds))
    assert {case.kind for case in few} == kinds
    assert sorted(case.id for case in chosen(cases, None)) == sorted(case.id for case in cases)


def test_a_gain_is_counted_case_by_case(before: dict[str, Answer], after: dict[str, Answer]) -> None:
    assert report(CASES, before)[0].startswith("right outcome 0.000")
    assert report(CASES, after)[0].startswith("right outcome 1.000")
    lines = compared(CASES, before, after)
    assert lines[0].startswith("gain +1.000")
    assert lines[1] == f"better: {len(CASES)} {' '.join(case.id for case in CASES)}"
    assert lines[2] == "worse: 0 "


def test_a_wrong_answer_that_was_called_checked_is_told(make_rag: Any) -> None:
    answers = {case.question: "没有这回事，一律不可以。" for case in CASES}
    lines = report(CASES, asked(make_rag, answers))
    assert f"called checked although wrong: {len(CASES)} of {len(CASES)}" in lines


def test_hops_that_made_it_worse_are_counted(make_rag: Any) -> None:
    grounding = in_turn(*[judged(0.4), judged(0.1)] * len(CASES))
    answers = {case.question: "运费由买家承担[1]。" for case in CASES}
    lines = report(CASES, asked(make_rag, answers, grounding=grounding))
    assert f"later hops: {len(CASES)}, of which {len(CASES)} were worse than the best before" in lines


def test_what_is_known_is_not_asked_again_and_a_cut_line_is(
    make_rag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_rag(helpful(generate={"answer": "七天[1]。"}))
    monkeypatch.setattr(eval_program, "build_program", lambda _: bench.rag)
    path = tmp_path / "program-now.jsonl"
    eval_program.record(CASES[:2], bench.rag.resources.settings, path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert set(read(path)) == {case.id for case in CASES[:2]}
    path.write_text(f"{lines[0]}\n{lines[1][:50]}", encoding="utf-8")
    calls = len(bench.lm.calls)
    eval_program.record(CASES[:1], bench.rag.resources.settings, path)
    assert len(bench.lm.calls) == calls, "known"
    known = eval_program.record(CASES[:2], bench.rag.resources.settings, path)
    assert set(known) == set(read(path)) == {case.id for case in CASES[:2]}
    assert [call.input("question") for call in bench.lm.asked("generate")][2:] == [CASES[1].question]
    # What the kill left is a line of its own, and the record behind it is whole.
    kept = path.read_text(encoding="utf-8").splitlines()
    assert kept[:2] == [lines[0], lines[1][:50]]
    assert (len(kept), json.loads(kept[2])["case"]) == (3, CASES[1].id)
