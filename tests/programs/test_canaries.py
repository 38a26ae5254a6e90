"""Broken judges are found out by planted cases, healthy ones are left in peace, and every answer says which."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from loop_scripts import QUESTION
from scripted_lm import Call, Reply, helpful

from programs import canaries, trust
from programs.canaries import SHORT_CALLS, Seen, conclude, run_canaries
from programs.errors import LanguageModelError
from programs.judges import GroundingJudge, RelevanceJudge, UtilityJudge
from programs.weighing import JudgeState, LinearModel
from signatures.canary_cases import CANARIES, PLANTED
from signatures.vocabulary import JUDGES

Chance = Callable[[bool, random.Random], float]
"""Probability of 是 for a right or a wrong case."""


def playing(chance: Chance, seed: int = 0) -> Any:
    """Judges that know the right answer of each planted case, and say what `chance` makes of it."""
    draw = random.Random(seed)

    def expected(call: Call) -> tuple[bool, ...]:
        named = [c for c in CANARIES if c.judge == call.signature and c.question == call.input("question")]
        if call.signature != "relevance":
            named = [c for c in named if c.answer == call.input("answer").rstrip()]
        return named[0].expected if named else (True,) * max(call.passage_count, 1)

    def judge(call: Call) -> Reply:
        chances = [chance(right, draw) for right in expected(call)]
        labels = ["是" if p >= 0.5 else "否" for p in chances]
        if call.signature == "relevance":
            text = json.dumps({"verdicts": " ".join(f"{n}{x}" for n, x in enumerate(labels, 1))}, ensure_ascii=False)
        else:
            text = json.dumps({"verdict": labels[0], "reason": "理由"}, ensure_ascii=False)
        return Reply(text, probability=chances)

    return helpful(relevance=judge, grounding=judge, utility=judge)


def healthy(right: bool, draw: random.Random) -> float:
    return draw.uniform(0.8, 0.99) if right else draw.uniform(0.01, 0.2)


BROKEN: dict[str, Chance] = {
    "always one": lambda right, draw: 1.0,
    "nearly always one": lambda right, draw: draw.uniform(0.97, 0.999),
    "always zero": lambda right, draw: 0.0,
    "inverted": lambda right, draw: 0.05 if right else 0.95,
    "always in the middle": lambda right, draw: 0.5,
}


def found(bench: Any, *, full: bool) -> dict[str, Any]:
    return {one.judge: one for one in run_canaries(bench.rag.judges, full=full)}


# -- the cases themselves --------------------------------------------------------------------


def test_the_cases_cover_every_kind_in_both_languages_and_are_no_labelled_cases() -> None:
    assert len({case.id for case in CANARIES}) == len(CANARIES)
    kinds = {case.kind for case in CANARIES}
    assert kinds >= {"right", "empty", "number", "negation", "wrong_passage", "injected"}
    for judge in JUDGES:
        own = [case for case in CANARIES if case.judge == judge]
        labels = {label for case in own for label in case.expected}
        short = {label for case in own if case.short for label in case.expected}
        assert labels == short == {True, False}, "a judge that always says the same cannot pass"
        assert {any("一" <= c <= "鿿" for c in case.question) for case in own} == {True, False}
        assert PLANTED[judge]
    assert sum(case.short for case in CANARIES) == SHORT_CALLS
    gold = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parents[2].glob("data/bad_cases/*.jsonl")
    )
    assert [case.id for case in CANARIES if case.question in gold] == []


# -- judges that work ------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_a_healthy_judge_is_trusted_and_the_short_set_costs_six_calls(make_rag: Any, full: bool) -> None:
    bench = make_rag(playing(healthy))
    seen = found(bench, full=full)
    assert {name: one.trusted for name, one in seen.items()} == dict.fromkeys(JUDGES, True)
    assert all(one.failed == () and one.verdicts == one.separation == 1.0 for one in seen.values())
    assert len(bench.lm.calls) == (SHORT_CALLS if not full else sum(bool(case.expected) for case in CANARIES))
    assert bench.ask(QUESTION).degraded == ()


def test_an_answer_without_log_probabilities_is_judged_by_its_labels(make_rag: Any) -> None:
    def plain(call: Call) -> Any:
        reply = playing(healthy)(call)
        return Reply(reply.text) if isinstance(reply, Reply) else reply

    assert all(one.trusted for one in found(make_rag(plain), full=True).values())


# -- judges that do not ----------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_judge_is_caught_and_every_answer_says_so(make_rag: Any, fault: str, full: bool) -> None:
    bench = make_rag(playing(BROKEN[fault]))
    seen = found(bench, full=full)
    assert {name: one.trusted for name, one in seen.items()} == dict.fromkeys(JUDGES, False)
    assert all(one.failed for one in seen.values())
    for question in (QUESTION, "？"):
        notes = [text for text in bench.ask(question).degraded if text.startswith("评审不可信")]
        assert len(notes) == 3
    assert any("依据" in text for text in notes)


def weighing_that_ignores_the_model(judge: str) -> JudgeState:
    """A fitted state in which evidence alone decides, rightly or wrongly."""
    feature = {"relevance": "overlap", "grounding": "support_least", "utility": "cosine"}[judge]

    def model(*names: str) -> LinearModel:
        weights = tuple(0.001 if name == "lm" else 5.0 for name in names)
        flat = tuple(1.0 for _ in names)
        return LinearModel(features=names, center=tuple(0.0 for _ in names), scale=flat, weights=weights, bias=-2.0)

    return JudgeState(weighed=model("lm", feature), alone=model(feature), threshold=0.5, low=0.2, high=0.8)


@pytest.mark.parametrize("fault", ["always one", "inverted"])
def test_evidence_does_not_hide_a_broken_language_model(make_rag: Any, fault: str) -> None:
    """Its own opinion is looked at, whatever the rest makes of it."""
    states = {judge: weighing_that_ignores_the_model(judge) for judge in JUDGES}
    seen = found(make_rag(playing(BROKEN[fault]), judges=states), full=True)
    assert {name: one.trusted for name, one in seen.items()} == dict.fromkeys(JUDGES, False)
    assert all(one.separation is not None and one.separation <= 0.5 for one in seen.values())


def test_a_judge_that_weighs_and_whose_model_is_healthy_is_trusted(make_rag: Any) -> None:
    def model(*names: str) -> LinearModel:
        flat = tuple(1.0 for _ in names)
        return LinearModel(features=names, center=tuple(0.0 for _ in names), scale=flat, weights=flat, bias=0.0)

    state = JudgeState(weighed=model("lm"), alone=model("overlap"), threshold=0.5, low=0.01, high=0.99)
    seen = found(make_rag(playing(healthy), judges=dict.fromkeys(JUDGES, state)), full=True)
    assert all(one.trusted and one.separation == 1.0 for one in seen.values())


def test_a_model_that_is_asked_where_a_rule_decides_is_asked_beside_the_rule(make_rag: Any) -> None:
    """No passages and a number that nobody wrote fail without a call; the model's opinion is still wanted."""
    bench = make_rag(playing(healthy))
    found(bench, full=True)
    answers = [call.input("answer") for call in bench.lm.asked("grounding")]
    assert "会议室一次最多能预约 6 小时。" in answers
    assert "保修期为三年，全国联保。" in answers


class _MissingIsOne:
    """A judge whose author meant well: what cannot be read counts as a pass."""

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        made = await super().aforward(**inputs)  # type: ignore[misc]
        if made.verdict.error_kind is None:
            return made
        ids = made.verdict.passage_scores
        return self._verdict(1.0, "", passage_scores=dict.fromkeys(ids, 1.0))  # type: ignore[attr-defined]


class _NoPassagesIsOne:
    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        if not inputs.get("passages"):
            return self._verdict(1.0, "", source="rule")  # type: ignore[attr-defined]
        return await super().aforward(**inputs)  # type: ignore[misc]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("judge", [RelevanceJudge, GroundingJudge, UtilityJudge])
def test_a_judge_that_reads_what_is_missing_as_a_pass_is_caught(make_rag: Any, judge: type, full: bool) -> None:
    bench = make_rag(playing(healthy))
    broken = type("Broken", (_MissingIsOne, judge), {})(bench.rag.resources)
    setattr(bench.rag.judges, judge.name, broken)
    seen = found(bench, full=full)
    assert [name for name, one in seen.items() if one.trusted is False] == [judge.name]
    assert any("missing" in text for text in seen[judge.name].failed)


@pytest.mark.parametrize("judge", [RelevanceJudge, GroundingJudge])
def test_a_judge_that_passes_what_has_no_passages_is_caught(make_rag: Any, judge: type) -> None:
    bench = make_rag(playing(healthy))
    setattr(bench.rag.judges, judge.name, type("Broken", (_NoPassagesIsOne, judge), {})(bench.rag.resources))
    assert found(bench, full=True)[judge.name].trusted is False


@pytest.mark.parametrize("reply", ["嗯……", '{"score": 1.0}', "<think>想", Reply("{", finish="length")], ids=str)
def test_a_model_that_writes_no_verdict_is_not_trusted(make_rag: Any, reply: Any) -> None:
    bench = make_rag(helpful(relevance=reply, grounding=reply, utility=reply))
    seen = found(bench, full=True)
    assert [one.trusted for one in seen.values()] == [False] * 3


def test_an_endpoint_that_is_down_says_nothing_about_its_judges(make_rag: Any) -> None:
    down = Reply(status=500)
    bench = make_rag(helpful(relevance=down, grounding=down, utility=down))
    assert [one.trusted for one in found(bench, full=False).values()] == [None] * 3
    assert not any("评审不可信" in text for text in bench.ask(QUESTION).degraded)


# -- how long a mark stays -------------------------------------------------------------------


def test_a_mark_stays_until_a_run_of_at_least_the_same_set_passes(make_rag: Any) -> None:
    how: list[Chance] = [BROKEN["always one"]]
    bench = make_rag(lambda call: playing(lambda right, draw: how[0](right, draw))(call))
    found(bench, full=True)
    how[0] = healthy
    assert len(bench.ask(QUESTION).degraded) == 3
    found(bench, full=False)
    assert len(bench.ask(QUESTION).degraded) == 3, "two cases do not clear what all of them found"
    found(bench, full=True)
    assert bench.ask(QUESTION).degraded == ()


def test_a_mark_belongs_to_a_model_and_a_prompt(make_rag: Any) -> None:
    bench = make_rag(playing(BROKEN["always one"]))
    found(bench, full=False)
    other = make_rag(playing(healthy), home=bench.rag.resources.settings.home)
    assert other.ask(QUESTION).degraded == ()
    utility = bench.rag.judges.utility.judge
    utility.signature = utility.signature.with_instructions("换一个提示。")
    assert len(bench.ask(QUESTION).degraded) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"judges": {"x": {"trusted": 3}}}', b"[]"])
def test_marks_that_cannot_be_read_are_no_clean_bill(make_rag: Any, content: bytes) -> None:
    bench = make_rag(playing(healthy))
    path = bench.rag.resources.settings.home / trust.FILE
    path.write_bytes(content)
    record = bench.ask(QUESTION)
    assert record.status == "answered"
    assert any("评审不可信" in text and "读不出来" in text for text in record.degraded)
    found(bench, full=True)
    assert bench.ask(QUESTION).degraded == (), "a run writes the file anew"


# -- both kinds of error ---------------------------------------------------------------------


def share_trusted(judge: str, right_in: float, *, full: bool, runs: int = 400) -> float:
    """Share of judges that are right in `right_in` of all statements and are trusted."""
    draw = random.Random(7)
    cases = [case for case in CANARIES if case.judge == judge and (full or case.short)]
    trusted = 0
    for _ in range(runs):
        seen = []
        for case in cases:
            for expected in case.expected:
                says = expected if draw.random() < right_in else not expected
                own = draw.uniform(0.7, 0.99) if says else draw.uniform(0.01, 0.3)
                seen.append(Seen(case.id, expected, says, own))
        trusted += bool(conclude(judge, seen, [], full=full).trusted)  # type: ignore[arg-type]
    return trusted / runs


@pytest.mark.parametrize("judge", JUDGES)
def test_a_judge_that_errs_now_and_then_is_rarely_marked_and_one_that_guesses_mostly_is(judge: str) -> None:
    assert share_trusted(judge, 1.0, full=True) == 1.0
    assert share_trusted(judge, 0.97, full=True) >= 0.97
    assert share_trusted(judge, 0.5, full=True) <= 0.1
    assert share_trusted(judge, 0.0, full=True) == share_trusted(judge, 0.0, full=False) == 0.0


def test_what_cannot_be_told_apart_separates_nothing() -> None:
    seen = [Seen("a", True, True, 0.98), Seen("b", False, False, 0.97)]
    assert canaries._separation(seen) == 0.5
    assert conclude("utility", seen, [], full=False).trusted is False
    assert conclude("utility", seen[:1], [], full=False).trusted is None


def test_an_opinion_can_be_asked_for_alone_and_fails_like_any_call(make_rag: Any) -> None:
    bench = make_rag(helpful(grounding=Reply(status=500)))
    judge = bench.rag.judges.grounding
    with pytest.raises(LanguageModelError):
        canaries.background.run(judge.opinion(question="退货", answer="七天", passages=[]))
