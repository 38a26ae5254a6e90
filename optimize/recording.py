"""What the judges' language model says of the labelled cases, recorded once.

    python -m optimize.recording --judge relevance [--lm LINE] [--split train]

Fitting, comparing and replaying need no call after that. A recording is tied to the language model and to
the prompt: either of them changed, it begins anew. Interrupted, it goes on where it stopped; a case that
failed because the language model could not be reached is asked again the next time.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dspy

from data.loading import load_grounding_cases, load_relevance_cases, load_utility_cases
from data.schema import Case, GroundingCase, RelevanceCase, UtilityCase
from optimize import jsonl
from optimize.gold import GoldPassages, sample_passages
from programs import background, budget
from programs.build import build_resources
from programs.judges import GroundingJudge, RelevanceJudge, UtilityJudge
from programs.module import Resources
from programs.settings import Settings, load_settings
from programs.state import signature_digest
from signatures.records import Passage, Verdict
from signatures.vocabulary import JUDGES, JudgeName

NEIGHBOURS = 0
"""Passages that are judged together with the one of a relevance case, as the loop judges a whole search;
more would be nearer to it, and cost more minutes than they are worth on two cores."""
JudgeCase = RelevanceCase | GroundingCase | UtilityCase
Judge = RelevanceJudge | GroundingJudge | UtilityJudge
JUDGE_CLASSES: dict[JudgeName, type[RelevanceJudge | GroundingJudge | UtilityJudge]] = {
    "relevance": RelevanceJudge,
    "grounding": GroundingJudge,
    "utility": UtilityJudge,
}


@dataclass(frozen=True)
class Opinion:
    """What a judge said of a case, before any weighing.

    Attributes:
        id: Of the case.
        score: The language model's probability, or what a rule decided; None for UNKNOWN.
        source: `lm`, `rule` or `check`, as in a verdict.
        error: Kind of failure; "" for none.
        seconds: Wall time.
        prompt_tokens, completion_tokens: As the endpoint reported.
    """

    id: str
    score: float | None
    source: str
    error: str
    seconds: float
    prompt_tokens: int
    completion_tokens: int


def judge_cases(judge: JudgeName) -> Sequence[JudgeCase]:
    """The labelled cases of a judge."""
    loaders: dict[JudgeName, Callable[[], Sequence[JudgeCase]]] = {
        "relevance": load_relevance_cases,
        "grounding": load_grounding_cases,
        "utility": load_utility_cases,
    }
    return loaders[judge]()


def passages_of(case: JudgeCase, gold: GoldPassages) -> list[Passage]:
    """What the judge is shown: for a relevance case its passage and what shares words with the question."""
    match case:
        case GroundingCase():
            return [gold.shown(one).model_copy(update={"id": str(n)}) for n, one in enumerate(case.passages, start=1)]
        case RelevanceCase():
            own = gold.shown(case.passage)
            if not case.passage.document_id:
                return [own]
            near = gold.near(case.question, "corpus/", without=(own.id,), count=NEIGHBOURS)
            # Anywhere in the list, but the same place every time.
            place = int(hashlib.sha256(case.id.encode()).hexdigest(), 16) % (len(near) + 1)
            return [*near[:place], own, *near[place:]]
    return []


async def ask_judge(judge: Judge, case: JudgeCase, gold: GoldPassages) -> Verdict:
    """The verdict on a case; for relevance on its own passage only."""
    passages = passages_of(case, gold)
    match case:
        case GroundingCase():
            made = await judge.acall(question=case.question, answer=case.answer, passages=passages)
        case UtilityCase():
            made = await judge.acall(question=case.question, answer=case.answer)
        case RelevanceCase():
            made = await judge.acall(question=case.question, passages=passages)
            verdict: Verdict = made.verdict
            score = verdict.passage_scores[gold.shown(case.passage).id]
            return verdict.model_copy(update={"score": score, "passed": score is not None and score >= judge.threshold})
    return made.verdict  # type: ignore[no-any-return]


class Recording:
    """The opinions of one language model with one prompt on the cases of one judge.

    Args:
        judge: Which judge, with the prompt that is to be recorded.
        settings: Say where recordings are kept.
        identity: Of the language model.
        source: Whose cases; "" for those of `data/bad_cases`. Each source has a file of its own.
    """

    def __init__(self, judge: Judge, settings: Settings, identity: str, source: str = "") -> None:
        prompt = json.dumps(
            [signature_digest(judge.judge.signature), [dict(d) for d in judge.judge.demos]], default=str
        )
        digest = hashlib.sha256(f"{identity}\0{prompt}".encode()).hexdigest()[:12]
        self._judge = judge
        name = f"{source}-{judge.name}" if source else judge.name
        self.path: Path = settings.home / "recordings" / f"{name}-{digest}.jsonl"

    def known(self) -> dict[str, Opinion]:
        """Opinions by what was asked; a line that was cut by a kill is left out."""
        found = {}
        for record in jsonl.lines(self.path):
            key = record.pop("key")
            found[key] = Opinion(**record)
        return found

    def opinions(self, cases: Iterable[JudgeCase]) -> dict[str, Opinion]:
        """Opinions on cases by their id; those that were not recorded are missing."""
        known = self.known()
        return {case.id: known[key] for case in cases if (key := _key(case)) in known}

    def record(self, cases: Sequence[JudgeCase], gold: GoldPassages) -> Iterator[tuple[JudgeCase, Opinion]]:
        """Ask about the cases that are not recorded yet, one after the other."""
        known = self.known()
        for case in cases:
            if _key(case) in known:
                continue
            account = budget.Budget()
            started = time.monotonic()
            with budget.spending(account):
                verdict = background.run(ask_judge(self._judge, case, gold))
            usage = account.usage()
            opinion = Opinion(
                id=case.id,
                score=verdict.score,
                source=verdict.source,
                error=verdict.error_kind or "",
                seconds=round(time.monotonic() - started, 3),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
            if opinion.error not in ("connection", "timeout", "auth", "rate_limit", "server"):
                jsonl.append(self.path, {"key": _key(case), **asdict(opinion)})
            yield case, opinion


def record_all(recording: Recording, cases: Sequence[JudgeCase], gold: GoldPassages, name: str) -> None:
    """Record what is missing; a line on stderr for every tenth case and for each failure."""
    missing = len(cases) - len(recording.opinions(cases))
    started = time.monotonic()
    for number, (case, opinion) in enumerate(recording.record(cases, gold), start=1):
        if number % 10 == 0 or opinion.error:
            rate = (time.monotonic() - started) / number
            sys.stderr.write(f"{name} {number}/{missing} {case.id} {opinion.error} {rate:.1f} s each\n")
            sys.stderr.flush()


def plain_resources(settings: Settings) -> Resources:
    """Resources in which no judge weighs anything: what the language model says is the score."""
    # Not read at all: a state of another version must not keep anybody from making a new one.
    return build_resources(settings.model_copy(update={"use_compiled": False}))


def load_prompt(judge: Judge, stored: dict[str, object] | None) -> None:
    """Give a judge a compiled prompt, as DSPy stores it."""
    if stored:
        predict: dspy.Predict = judge.judge
        predict.load_state(stored)


def _key(case: Case) -> str:
    shown = case.model_dump(exclude={"group", "split", "kind", "origin", "lang", "passed"})
    return hashlib.sha256(json.dumps(shown, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    """Record and report progress."""
    parser = argparse.ArgumentParser(prog="python -m optimize.recording")
    parser.add_argument("--judge", choices=JUDGES, action="append", help="which; all when none is named")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--split", choices=["train", "dev", "test"], action="append")
    arguments = parser.parse_args(argv)
    settings = load_settings(**({"lm": arguments.lm} if arguments.lm else {}))
    resources = plain_resources(settings)
    gold = sample_passages()
    for name in arguments.judge or JUDGES:
        judge = JUDGE_CLASSES[name](resources)
        recording = Recording(judge, settings, resources.lms.identity("judge"))
        cases = [case for case in judge_cases(name) if not arguments.split or case.split in arguments.split]
        record_all(recording, cases, gold, name)
        sys.stdout.write(f"{name}: {len(recording.opinions(cases))} of {len(cases)} recorded\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
