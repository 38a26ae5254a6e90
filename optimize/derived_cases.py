"""Judge cases as the loop meets them, made from the labelled questions of `qa.jsonl`.

The cases of `data/bad_cases` are hard on purpose: right and wrong differ in one decisive place. A judge
that is weighed on them alone learns that shared words and likeness mean nothing, which is untrue of most of
what it meets. So it is also shown right answers beside what was retrieved for them, the same answers beside
passages that do not hold them, and answers to other questions. Train questions only, and only to fit: no
figure is reported on them.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data.loading import load_question_cases
from data.schema import GroundingCase, QuestionCase, RelevanceCase, Shown, UtilityCase
from optimize.gold import GoldPassages
from optimize.metrics import facts_present
from signatures.records import Passage
from signatures.vocabulary import JudgeName

COUNT: dict[JudgeName, int] = {"relevance": 40, "grounding": 40, "utility": 40}
"""Questions of which one right and one wrong case is made for a judge."""
SHOWN = 3
"""Passages beside an answer, as the plans show them."""
DerivedCase = RelevanceCase | GroundingCase | UtilityCase


def derived_cases(judge: JudgeName, gold: GoldPassages) -> list[DerivedCase]:
    """Right and wrong cases of a judge, half of each, the same ones every time."""
    questions = [case for case in load_question_cases() if case.split == "train" and case.answerable]
    # In no order that the file has: neighbours there are about one document.
    questions.sort(key=lambda case: hashlib.sha256(case.id.encode()).hexdigest())
    makers: dict[JudgeName, Callable[..., Iterator[DerivedCase]]] = {
        "relevance": _relevance,
        "grounding": _grounding,
        "utility": _utility,
    }
    made: list[DerivedCase] = []
    for case in questions:
        if len(made) >= 2 * COUNT[judge]:
            break
        pair = list(makers[judge](case, questions, gold))
        if len(pair) == 2:
            made += pair
    return made


def _relevance(case: QuestionCase, others: Sequence[QuestionCase], gold: GoldPassages) -> Iterator[RelevanceCase]:
    held = gold.find(case.gold[0])
    for passed, passages in ((True, [held]), (False, _without_answer(case, gold)[:1])):
        for passage in passages:
            yield RelevanceCase(
                **_about(case, "rel", passed), question=case.question, passage=_shown(passage), passed=passed
            )


def _grounding(case: QuestionCase, others: Sequence[QuestionCase], gold: GoldPassages) -> Iterator[GroundingCase]:
    held = list({passage.id: passage for passage in map(gold.find, case.gold)}.values())
    near = _without_answer(case, gold)
    if not near:
        return
    right = [*held, *near][: max(SHOWN, len(held))]
    # The answer is anywhere among them.
    right.sort(key=lambda passage: hashlib.sha256(f"{case.id} {passage.id}".encode()).hexdigest())
    for passed, passages in ((True, right), (False, near[:SHOWN])):
        yield GroundingCase(
            **_about(case, "gro", passed),
            question=case.question,
            passages=tuple(_shown(passage) for passage in passages),
            answer=case.answer,
            passed=passed,
        )


def _utility(case: QuestionCase, others: Sequence[QuestionCase], gold: GoldPassages) -> Iterator[UtilityCase]:
    # The answer to another question about the same document, so that it is not merely about something else.
    wrong = next(
        (
            other.answer
            for other in others
            if other.group != case.group
            and other.gold[0].document_id == case.gold[0].document_id
            and other.lang == case.lang
            and not any(facts_present(case, other.answer))
        ),
        None,
    )
    if wrong is not None:
        for passed, answer in ((True, case.answer), (False, wrong)):
            yield UtilityCase(**_about(case, "uti", passed), question=case.question, answer=answer, passed=passed)


def _without_answer(case: QuestionCase, gold: GoldPassages) -> list[Passage]:
    """Passages that share words with a question and hold none of its facts, best first."""
    folder = case.gold[0].document_id.split("/")[0]
    own = [gold.find(one).id for one in case.gold]
    near = gold.near(case.question, f"{folder}/", without=own, count=2 * SHOWN)
    return [passage for passage in near if not any(facts_present(case, f"{passage.heading} {passage.text}"))]


def _shown(passage: Passage) -> Shown:
    return Shown(heading=passage.heading, text=passage.text)


def _about(case: QuestionCase, judge: str, passed: bool) -> dict[str, Any]:
    return {
        "id": f"{case.id}-{judge}-{'right' if passed else 'wrong'}",
        "group": f"derived-{case.group}",
        "split": case.split,
        "kind": "derived_right" if passed else "derived_wrong",
        "origin": f"derived from {case.id}",
        "lang": case.lang,
    }
