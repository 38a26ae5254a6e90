"""Says which stage made a labelled question fail, by putting right stages in one at a time.

    python -m optimize blame qa-0042
    python -m optimize blame qa-0042 --lm 'qwen-plus@https://host/v1?key=MY_KEY'

The question is asked of the program as it is; then with the gold route, the gold passages and the gold
verdicts, each alone and one after the other. The stage whose replacement makes the outcome right is to
blame; where none does, the wording of the answer is.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize.cases import shown
from optimize.gold import GoldPassages, sample_passages
from optimize.gold_stages import STAGES, Stage, gold_of, holds_facts, swapped
from optimize.metrics import outcome
from programs.build import build_resources
from programs.errors import AdaptiveRAGError
from programs.module import Resources
from programs.settings import load_settings
from programs.strategies import INTENT_STRATEGY
from signatures.records import Answer, Passage

GENERATOR = "answer"
OUTAGE = "outage"


class CaseNotFound(AdaptiveRAGError):
    """No labelled question has this id."""


@dataclass(frozen=True)
class Attempt:
    """The question asked with some stages right.

    Attributes:
        stages: What was replaced; () for the program as it is.
        record: What came out.
        right: Whether the outcome is right.
        said: What the metric says of it.
    """

    stages: tuple[Stage, ...]
    record: Answer
    right: bool
    said: str


@dataclass(frozen=True)
class Blame:
    """Who is to blame.

    Attributes:
        stages: The stages that have to be right for a right outcome; `answer` where all of them are not
            enough, `outage` where the program could not run, () where nothing is wrong.
        attempts: What was tried, the program as it is first.
        seen: What the first attempt shows of each stage, in words.
    """

    stages: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    seen: tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("case", metavar="CASE", help="id of a labelled question, such as qa-0042")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")


def run(arguments: argparse.Namespace) -> int:
    """Find out and print."""
    case = next((one for one in load_question_cases() if one.id == arguments.case), None)
    if case is None:
        raise CaseNotFound(f"no labelled question has the id {arguments.case!r}", hint="See data/bad_cases/qa.jsonl.")
    settings = load_settings(**({"lm": arguments.lm} if arguments.lm else {}))
    resources = build_resources(settings)
    try:
        print_blame(case, blame(case, resources, sample_passages()))
    finally:
        resources.close()
    return 0


def blame(case: QuestionCase, resources: Resources, known: GoldPassages) -> Blame:
    """Ask the question as often as it takes.

    Args:
        case: The labelled question.
        resources: Of the program as it runs; its index should hold the sample knowledge base.
        known: Where gold passages are looked up.

    Raises:
        DataError: The gold passages of the case cannot be found.
    """
    gold = gold_of(case, known)
    first = _attempt(case, resources, gold, ())
    seen = tuple(_seen(case, first.record, gold))
    if first.right or first.record.status == "unavailable":
        return Blame((OUTAGE,) if not first.right else (), (first,), seen)
    # A question without an answer has no gold passages: what was found is not at fault, who believed it is.
    stages = STAGES if case.answerable else tuple(stage for stage in STAGES if stage != "passages")
    growing = list(accumulate(((stage,) for stage in stages), lambda a, b: (*a, *b)))
    wanted = dict.fromkeys([*((stage,) for stage in stages), *growing])
    tried = {one: _attempt(case, resources, gold, one) for one in wanted}
    alone = [one for one in wanted if len(one) == 1 and tried[one].right]
    if len(alone) > 1 and ("passages",) in alone and _found(first.record, gold):
        alone.remove(("passages",))  # they were found: showing them alone only hides the stage that failed
    enough = next(iter(alone), None) or next((one for one in growing if tried[one].right), None)
    for stage in (enough or ()) if not alone else ():
        # Of those that came along on the way, the ones that are not needed are left out.
        fewer = tuple(one for one in enough or () if one != stage)
        if fewer not in tried:
            tried[fewer] = _attempt(case, resources, gold, fewer)
        if tried[fewer].right:
            enough = fewer
    return Blame(enough or (GENERATOR,), (first, *tried.values()), seen)


def print_blame(case: QuestionCase, found: Blame) -> None:
    """What was tried, and the verdict."""
    write = sys.stdout.write
    write(f"{case.id} {case.kind}: {case.question}\n")
    write(f"wanted: {shown(case.answer, 100) if case.answerable else 'no answer'}\n\n")
    for attempt in found.attempts:
        name = " + ".join(attempt.stages) or "as it is"
        record = attempt.record
        write(
            f"{'right' if attempt.right else 'wrong'}  gold {name}:" if attempt.stages else
            f"{'right' if attempt.right else 'wrong'}  {name}:"
        )  # fmt: skip
        write(f" {record.status}, {record.usage.lm_calls} calls: {shown(record.answer, 80)}\n       {attempt.said}\n")
    write("\n" + "".join(f"  {line}\n" for line in found.seen))
    write(f"to blame: {_sentence(found.stages)}\n")


def _attempt(case: QuestionCase, resources: Resources, gold: Sequence[Passage], stages: tuple[Stage, ...]) -> Attempt:
    program = swapped(resources, case, gold, stages)
    record: Answer = program(question=case.question, category=case.category).record
    share, said = outcome(case, record)
    return Attempt(stages, record, share >= 1.0, said)


def _found(record: Answer, gold: Sequence[Passage]) -> bool:
    hits = {hit.passage.id for hop in record.trace for hit in hop.hits}
    return all(passage.id in hits for passage in gold)


def _seen(case: QuestionCase, record: Answer, gold: Sequence[Passage]) -> list[str]:
    """What the program's own run shows of each stage."""
    decision = record.decision
    lines = [
        f"route: {decision.intent} → {record.strategy} ({decision.confidence:.2f}),"
        f" gold {case.intent} → {INTENT_STRATEGY.get(case.intent, 'fallback')}"
    ]
    for passage in gold:
        places = [
            f"hop {hop.hop} place {place}" + ("" if passage.id in hop.kept else ", dropped")
            for hop in record.trace
            for place, hit in enumerate(hop.hits, start=1)
            if hit.passage.id == passage.id
        ]
        lines.append(f"gold passage {passage.id}: {'; '.join(places) or 'not found'}")
    for hop in record.trace:
        fits = "right" if holds_facts(case, hop.answer) else "wrong"
        for verdict in (hop.relevance, hop.grounding, hop.utility):
            if verdict is not None:
                score = "UNKNOWN" if verdict.score is None else f"{verdict.score:.2f}"
                about = "" if verdict.judge == "relevance" else f" of a {fits} answer"
                lines.append(f"hop {hop.hop} {verdict.judge}: {score} {'pass' if verdict.passed else 'fail'}{about}")
    return lines


def _sentence(stages: Sequence[str]) -> str:
    if not stages:
        return "nothing, the outcome is right"
    if stages == (GENERATOR,):
        return "answer (route, passages and verdicts are right, and what is written is not)"
    if stages == (OUTAGE,):
        return "outage (a store or the language model failed; nothing can be said about the stages)"
    return " and ".join(stages) + (" together: neither alone is enough" if len(stages) > 1 else "")
