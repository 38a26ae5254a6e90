"""Planted cases for the judges: one that cannot tell right from wrong is found out before it is believed.

Two things are looked at, because either can hide a fault of the other:

- the **verdict**, as the program uses it, with its rules, its evidence and its threshold;
- the **language model's own opinion** of the same case, also where a rule decides without it or where the
  evidence outvotes it. A model that always says 是 can look well behind good rules.

A judge is trusted when every verdict of a rule is right, a reply that is no verdict passes nothing, and both
figures lie at least halfway between guessing (0.5) and perfect (1.0). On the full set a judge that guesses
gets there in few cases of a hundred (`tests/programs/test_canaries.py` measures both kinds of error).
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from programs import background, budget
from programs.endpoint import Body, EndpointClient
from programs.errors import LanguageModelError
from programs.judges import GroundingJudge, Judges, RelevanceJudge, UtilityJudge
from programs.lm import RoleLMs
from programs.lm_line import EndpointSettings
from programs.opinions import Opinion, OpinionCache, hearing, judge_key
from programs.prompting import passage_of
from programs.settings import ROLES
from programs.trust import JudgeTrust, remember
from signatures.canary_cases import CANARIES, PLANTED, Canary
from signatures.records import Verdict
from signatures.vocabulary import JUDGES, FailureKind, JudgeName

SHORT_CALLS = 6
"""Calls of the short set when every reply is usable, and never more: two plain cases of each judge."""
ENOUGH = 0.75
"""Least balanced accuracy and separation: halfway between guessing and perfect."""
TIE = 0.05
"""Probabilities nearer than this are the same: an always-yes of 0.98 and 0.99 prefers nothing."""
_UNREACHED: tuple[FailureKind, ...] = ("connection", "timeout", "rate_limit", "server", "auth", "deadline", "budget")
"""Kinds that say something about the endpoint and nothing about the judge."""
Judge = RelevanceJudge | GroundingJudge | UtilityJudge


@dataclass(frozen=True)
class Seen:
    """One statement of a judge.

    Attributes:
        case: Id of the planted case.
        expected: What is right.
        passed: What the verdict says.
        own: The language model's own probability; None where it gave no usable reply.
        by_rule: Whether a rule or a check decided, so that the verdict says nothing about the language model.
    """

    case: str
    expected: bool
    passed: bool
    own: float | None
    by_rule: bool = False


async def examine_judges(judges: Judges, *, full: bool = True) -> dict[str, JudgeTrust]:
    """Run the planted cases.

    Args:
        judges: The judges of a program, with its compiled prompts and weights.
        full: All cases; else the short set, at most `SHORT_CALLS` calls, which finds a judge that is broken
            and not one that is weak.

    Returns:
        What was found by `judge_key`, in the order of the judges. Language model failures are in it.
    """
    settings = judges.relevance.resources.settings
    # The full set has no deadline of its own: a small model on a slow machine takes minutes, call by call.
    account = budget.Budget() if full else budget.Budget(seconds=settings.deadline, max_lm_calls=SHORT_CALLS)
    identity = judges.relevance.resources.lms.identity("judge")
    found: dict[str, JudgeTrust] = {}
    with budget.spending(account):
        for name in JUDGES:
            judge: Judge = getattr(judges, name)
            cases = [case for case in CANARIES if case.judge == name and (full or case.short)]
            seen = [one for case in cases for one in await _ask(judge, case)]
            fooled = [one for case in cases for one in await _plant(judge, case)]
            trust = conclude(name, seen, fooled, full=full).model_copy(update={"lm": identity})
            found[judge_key(name, judge.judge, identity)] = trust
    return found


def run_canaries(judges: Judges, *, full: bool = True) -> tuple[JudgeTrust, ...]:
    """Run the planted cases and keep what they say, so that answers carry it."""
    found = background.run(examine_judges(judges, full=full))
    remember(judges.relevance.resources.settings.home, found)
    return tuple(found.values())


def conclude(judge: JudgeName, seen: Sequence[Seen], fooled: Sequence[str], *, full: bool) -> JudgeTrust:
    """Whether a judge is trusted.

    Args:
        judge: Which.
        seen: Its statements.
        fooled: Planted replies that it read as a pass.
        full: Whether these were all cases.
    """
    wrong = [f"{one.case}：结论{'通过' if one.passed else '不通过'}" for one in seen if one.passed != one.expected]
    wrong += [f"{one.case}：模型自己的判断没有给出" for one in seen if one.own is None and not one.by_rule]
    weighed = [one for one in seen if not one.by_rule]
    verdicts = _balanced(weighed)
    separation = _separation([one for one in seen if one.own is not None])
    broken_rule = any(one.by_rule and one.passed != one.expected for one in seen)
    trusted: bool | None = None
    if broken_rule or fooled:
        trusted = False
    elif verdicts is not None:
        trusted = verdicts >= ENOUGH and separation is not None and separation >= ENOUGH
        if not trusted and verdicts >= ENOUGH:
            wrong.append("模型自己的判断分不出对错，结论全靠规则和其他依据")
    return JudgeTrust(
        judge=judge,
        trusted=trusted,
        full=full,
        cases=len({one.case for one in seen}),
        failed=tuple(dict.fromkeys([*wrong, *fooled])),
        verdicts=verdicts,
        separation=separation,
    )


async def _ask(judge: Judge, case: Canary) -> list[Seen]:
    """One statement for each label of a case; [] where the language model could not be reached."""
    with hearing() as heard:
        verdict = await _verdict(judge, case)
    if verdict.error_kind in _UNREACHED:
        return []
    by_rule = verdict.source != "lm" and verdict.error_kind is None
    own: Opinion = heard[-1] if heard else []
    if by_rule and case.expected:
        try:
            own = await judge.opinion(**_inputs(case))
        except LanguageModelError:
            own = []  # the verdict of the rule is all there is
    if not case.expected:
        return [Seen(case.id, False, verdict.passed, None, by_rule)]
    passed = [verdict.passed]
    if case.judge == "relevance":
        scores = [verdict.passage_scores[passage_of(text).id] for text in case.passages]
        passed = [score is not None and score >= judge.threshold for score in scores]
    own = own if len(own) == len(case.expected) else [None] * len(case.expected)
    return [
        Seen(case.id, expected, says, opinion, by_rule)
        for expected, says, opinion in zip(case.expected, passed, own, strict=True)
    ]


async def _plant(judge: Judge, case: Canary) -> list[str]:
    """What is wrong with how a judge reads replies that are no verdict, on what must not pass in a plain case."""
    if not case.short or all(case.expected):
        return []
    wrong = tuple(text for text, expected in zip(case.passages, case.expected, strict=False) if not expected)
    if case.judge == "relevance":
        case = case.model_copy(update={"passages": wrong})
    return [
        f"{case.id}：把不成结论的回复（{reply.id}）当成通过"
        for reply in PLANTED[case.judge]
        if (await _verdict(_with_reply(judge, reply.text, reply.finish), case)).passed
    ]


async def _verdict(judge: Judge, case: Canary) -> Verdict:
    verdict: Verdict = (await judge.acall(**_inputs(case))).verdict
    return verdict


def _inputs(case: Canary) -> dict[str, Any]:
    inputs: dict[str, Any] = {"question": case.question}
    if case.judge != "utility":
        inputs["passages"] = case.passages
    if case.judge != "relevance":
        inputs["answer"] = case.answer
    return inputs


def _balanced(seen: Iterable[Seen]) -> float | None:
    """Mean of the shares of right cases that pass and of wrong ones that do not; None without both kinds."""
    right = [one.passed for one in seen if one.expected]
    wrong = [not one.passed for one in seen if not one.expected]
    return (sum(right) / len(right) + sum(wrong) / len(wrong)) / 2 if right and wrong else None


def _separation(seen: Iterable[Seen]) -> float | None:
    """Share of pairs of a right and a wrong case in which the right one has the higher opinion; ties are half."""
    right = [one.own for one in seen if one.expected and one.own is not None]
    wrong = [one.own for one in seen if not one.expected and one.own is not None]
    if not right or not wrong:
        return None
    points = [0.5 if abs(high - low) < TIE else float(high > low) for high in right for low in wrong]
    return sum(points) / len(points)


class _PlantedEndpoint(EndpointClient):
    """An endpoint that gives one reply, without a network; all that reads replies is the real thing."""

    def __init__(self, settings: EndpointSettings, reply: Body) -> None:
        super().__init__(settings, lambda: ("", None))
        self._reply = reply

    async def _send(self, body: Body, budget: budget.Budget) -> Body:
        return self._reply


class _PlantedLMs(RoleLMs):
    """Every role gets the same reply."""

    def __init__(self, text: str, finish: str) -> None:
        message = {"role": "assistant", "content": text}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
        endpoint = EndpointSettings(model="planted")
        self._endpoints = {role: (endpoint,) for role in ROLES}
        self._clients = {role: [_PlantedEndpoint(endpoint, reply)] for role in ROLES}
        self._lms = {role: self._build(role) for role in ROLES}


def _with_reply(judge: Judge, text: str, finish: str) -> Judge:
    """The judge as it is, but for the language model that it asks."""
    planted = copy.copy(judge)
    planted.resources = replace(judge.resources, lms=_PlantedLMs(text, finish), opinions=OpinionCache())
    return planted
