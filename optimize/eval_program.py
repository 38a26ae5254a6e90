"""The whole program on labelled questions: right outcomes, what they cost, and how both change.

    python -m optimize.eval_program --name before --plain            prompts and judges as they are written
    python -m optimize.eval_program --name after --against before    with what is promoted, compared case by case

Every answer is kept with its trace under `ADAPTIVE_RAG_HOME/recordings/program-NAME.jsonl`: an interrupted run
goes on, `optimize replay` decides it again for other thresholds, and what is known is not asked again. Another
model, prompt or index needs another name.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize import jsonl
from optimize.metrics import outcome
from optimize.statistics import interval, paired_gain
from programs import decisions
from programs.build import build_program
from programs.settings import Settings, load_settings
from signatures.records import Answer

Known = Mapping[str, Answer]


def chosen(cases: Sequence[QuestionCase], limit: int | None) -> list[QuestionCase]:
    """At most `limit` cases, one of each failure kind in turn, so that all kinds are among a few.

    Args:
        cases: In the order of the file.
        limit: None for all.
    """
    kinds: dict[str, list[QuestionCase]] = defaultdict(list)
    for case in cases:
        kinds[case.kind].append(case)
    turns = max((len(group) for group in kinds.values()), default=0)
    mixed = [group[turn] for turn in range(turns) for _, group in sorted(kinds.items()) if turn < len(group)]
    return mixed[:limit]


def read(path: Path) -> dict[str, Answer]:
    """Answers by id of their case; a line that was cut by a kill is left out."""
    found = {}
    for value in jsonl.lines(path):
        # As JSON: read from Python, a list would not do for a tuple.
        found[value["case"]] = Answer.model_validate_json(json.dumps(value["record"]))
    return found


def record(cases: Sequence[QuestionCase], settings: Settings, path: Path) -> dict[str, Answer]:
    """Ask what is not known yet; an answer without a usable store or model is not kept."""
    known = read(path)
    missing = [case for case in cases if case.id not in known]
    if not missing:
        return known
    program = build_program(settings)
    for number, case in enumerate(missing, start=1):
        made: Answer = program(question=case.question, category=case.category).record
        if made.status == "unavailable":
            sys.stderr.write(f"{case.id}: {made.stop_reason}: {'; '.join(made.degraded)[:200]}\n")
            continue
        known[case.id] = made
        jsonl.append(path, {"case": case.id, "record": made.model_dump(mode="json")})
        right = outcome(case, made)[0]
        sys.stderr.write(f"{number}/{len(missing)} {case.id} {made.status} {right:.2f} {made.usage.seconds:.0f} s\n")
        sys.stderr.flush()
    program.resources.close()
    return known


def report(cases: Sequence[QuestionCase], known: Known) -> list[str]:
    """Figures of one recording."""
    scores = [outcome(case, known[case.id])[0] for case in cases]
    records = [known[case.id] for case in cases]
    groups = [case.group for case in cases]
    lines = [f"right outcome {_shown(interval(scores, groups))}, n {len(cases)}"]
    for name, part in (("answerable", True), ("unanswerable", False)):
        own = [(score, case.group) for score, case in zip(scores, cases, strict=True) if case.answerable is part]
        if own:
            lines.append(f"  {name} {_shown(interval([s for s, _ in own], [g for _, g in own]))}, n {len(own)}")
    for strategy in sorted({one.strategy for one in records}):
        own_scores = [s for s, one in zip(scores, records, strict=True) if one.strategy == strategy]
        lines.append(f"  {strategy} {fmean(own_scores):.3f}, n {len(own_scores)}")
    wrong = sum(one.status == "answered" and score < 1 for one, score in zip(records, scores, strict=True))
    lines.append(f"called checked although wrong: {wrong} of {sum(one.status == 'answered' for one in records)}")
    lines.append("status: " + ", ".join(f"{name} {n}" for name, n in Counter(o.status for o in records).most_common()))
    lines.append("stop: " + ", ".join(f"{n} {k}" for n, k in Counter(o.stop_reason for o in records).most_common()))
    later = [hop for one in records for hop in _later(one)]
    lines.append(f"later hops: {len(later)}, of which {sum(later)} were worse than the best before")
    seconds = [one.usage.seconds for one in records]
    lines.append(
        f"a question: {fmean(one.usage.lm_calls for one in records):.2f} calls, "
        f"{fmean(one.usage.prompt_tokens for one in records):.0f} prompt tokens "
        f"({fmean(one.usage.prompt_tokens - one.usage.cached_tokens for one in records):.0f} evaluated), "
        f"{fmean(one.usage.completion_tokens for one in records):.0f} written, "
        f"{fmean(seconds):.1f} s mean, {median(seconds):.1f} s median"
    )
    return lines


def compared(cases: Sequence[QuestionCase], before: Known, after: Known) -> list[str]:
    """What changed, on the cases that both know."""
    both = [case for case in cases if case.id in before and case.id in after]
    old = [outcome(case, before[case.id])[0] for case in both]
    new = [outcome(case, after[case.id])[0] for case in both]
    lines = [f"gain {_shown(paired_gain(old, new, [case.group for case in both]), sign=True)}, n {len(both)}"]
    for word, sign in (("better", 1), ("worse", -1)):
        ids = [case.id for case, a, b in zip(both, old, new, strict=True) if sign * (b - a) > 0]
        lines.append(f"{word}: {len(ids)} {' '.join(ids)}")
    ratio = sum(after[c.id].usage.seconds for c in both) / max(sum(before[c.id].usage.seconds for c in both), 1e-9)
    lines.append(f"seconds: {ratio:.2f} of before")
    return lines


def _later(record: Answer) -> list[bool]:
    """For each hop after the first, whether it was worse than the best before it."""
    ranks = [decisions.rank(hop.answer, hop.relevance, hop.grounding, hop.utility) for hop in record.trace]
    return [rank < max(ranks[:place]) for place, rank in enumerate(ranks) if place]


def _shown(value: Sequence[float], *, sign: bool = False) -> str:
    middle, low, high = value
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]" if sign else f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Record and report."""
    parser = argparse.ArgumentParser(prog="python -m optimize.eval_program")
    parser.add_argument("--name", default="now", help="of the recording")
    parser.add_argument("--against", metavar="NAME", help="an earlier recording to compare with")
    parser.add_argument("--split", choices=["train", "dev", "test"], default="test")
    parser.add_argument("--limit", type=int, help="at most so many cases, all failure kinds among them")
    parser.add_argument("--plain", action="store_true", help="prompts and judges as they are written")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")
    arguments = parser.parse_args(argv)
    settings = load_settings(
        **({"lm": arguments.lm} if arguments.lm else {}), **({"use_compiled": False} if arguments.plain else {})
    )
    folder = settings.home / "recordings"
    cases = chosen([case for case in load_question_cases() if case.split == arguments.split], arguments.limit)
    known = record(cases, settings, folder / f"program-{arguments.name}.jsonl")
    there = [case for case in cases if case.id in known]
    if not there:
        sys.stderr.write("no question could be asked\n")
        return 1
    lines = report(there, known)
    if arguments.against:
        lines += compared(there, read(folder / f"program-{arguments.against}.jsonl"), known)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
