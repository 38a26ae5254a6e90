"""Decides recorded requests again for other thresholds and hops, without one language model call.

    adaptive-rag ask --json 步行出差每公里补贴 > traces/1.json
    python -m optimize replay traces
    python -m optimize replay traces --cases      with labelled outcomes: accuracy against calls, and a pick

Thresholds are picked on train and dev cases; test is only reported.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize.metrics import outcome
from optimize.traces import Dials, Replayed, TraceError, Unknown, differences, read_traces, replay
from programs.adaptive_rag import clean_question
from programs.build import live_thresholds
from programs.settings import load_settings
from signatures.records import Answer
from signatures.vocabulary import JUDGES

GRID = (0.2, 0.35, 0.5, 0.65, 0.8)
HOPS = (1, 2, 3)
MIN_KNOWN = 0.8
"""Share of the cases that must be known at a point for it to be picked: what is left out is no accident."""


@dataclass(frozen=True)
class Point:
    """One setting of the dials, on the labelled cases.

    Attributes:
        dials: The setting.
        right: Share of right outcomes. That of the live setting on all cases, plus the mean difference
            on the cases that are known here: so that a point does not look good by what it leaves out.
        error: Standard error of `right`.
        calls: Language model calls for a question, estimated in the same way.
        known: Share of the cases that are known.
    """

    dials: Dials
    right: float
    error: float
    calls: float
    known: float


Labelled = Sequence[tuple[QuestionCase, Answer]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("traces", nargs="+", type=Path, help="JSON or JSON Lines files, or folders of them")
    parser.add_argument("--cases", nargs="*", metavar="ID", help="labelled outcomes: these qa cases, or all of them")
    parser.add_argument(
        "--live",
        nargs=3,
        type=float,
        metavar=("REL", "GND", "UTL"),
        help="thresholds that the traces were recorded with",
    )
    parser.add_argument("--grid", nargs="+", type=float, default=GRID, metavar="T", help="thresholds to try")
    parser.add_argument("--hops", nargs="+", type=int, default=HOPS, metavar="N", help="turns of the loop to try")


def run(arguments: argparse.Namespace) -> int:
    """Replay and print; the exit code is 1 where not one trace is reproduced."""
    settings = load_settings()
    thresholds = live_thresholds(settings) if arguments.live is None else {}
    relevance, grounding, utility = arguments.live or [thresholds[name] for name in JUDGES]
    live = Dials(relevance, grounding, utility)
    bounded = replace(live, max_hops=settings.max_hops)
    records = read_traces(arguments.traces)
    write = sys.stdout.write
    good = []
    for record in records:
        wrong = differences(record, replay(record, live, bounded))
        if wrong:
            write(f"not reproduced: {record.question[:60]}: {'; '.join(wrong)}\n")
        else:
            good.append(record)
    write(f"{len(good)} of {len(records)} traces are reproduced exactly at {_shown(live)}\n")
    if not good:
        raise TraceError(
            "no trace is reproduced", hint="Name the thresholds that they were recorded with: --live REL GND UTL"
        )
    if arguments.cases is None:
        _report_decisions(good, live, bounded, arguments.grid, arguments.hops)
        return 0
    labelled = match(good, arguments.cases)
    if not labelled:
        raise TraceError("no trace asks the question of one of the cases")
    fit = [pair for pair in labelled if pair[0].split != "test"] or labelled
    points = frontier(fit, bounded, grid(live, arguments.grid, arguments.hops))
    chosen = pick(points)
    _report_frontier(points, chosen, len(fit))
    if test := [pair for pair in labelled if pair[0].split == "test"]:
        for name, dials in (("live", live), ("picked", chosen.dials)):
            [point] = frontier(test, bounded, [dials])
            write(f"test, {name}: {_line(point)} (n {len(test)})\n")
    return 0


def match(records: Sequence[Answer], wanted: Sequence[str]) -> list[tuple[QuestionCase, Answer]]:
    """Traces with the case that asks the same question.

    Args:
        records: Traces.
        wanted: Ids of cases; all when empty.
    """
    cases = {clean_question(case.question): case for case in load_question_cases() if not wanted or case.id in wanted}
    return [(cases[record.question], record) for record in records if record.question in cases]


def grid(live: Dials, thresholds: Sequence[float], hops: Sequence[int]) -> list[Dials]:
    """Every setting to try, the live one first."""
    axes = [sorted({*thresholds, own}) for own in (live.relevance, live.grounding, live.utility)]
    tried = [Dials(r, g, u, n) for n in sorted(set(hops)) for r, g, u in product(*axes)]
    return list(dict.fromkeys([live, *tried]))


def frontier(labelled: Labelled, live: Dials, dials: Sequence[Dials]) -> list[Point]:
    """Accuracy and cost of each setting."""
    base = [_scored(case, record, replay(record, replace(live, max_hops=None), live)) for case, record in labelled]
    points = []
    for one in dials:
        both = [
            (before, after)
            for (case, record), before in zip(labelled, base, strict=True)
            if before and (after := _scored(case, record, replay(record, one, live)))
        ]
        if not both:
            continue
        known = np.asarray(both, dtype=float)
        everything = np.asarray([own for own in base if own], dtype=float)
        right, calls = everything.mean(axis=0) + (known[:, 1] - known[:, 0]).mean(axis=0)
        error = float(known[:, 1, 0].std() / np.sqrt(len(known)))
        points.append(Point(one, float(right), error, float(calls), len(both) / len(labelled)))
    return points


def pick(points: Sequence[Point]) -> Point:
    """The cheapest point within one standard error of the best (Breiman et al., 1984), of those known well."""
    usable = [point for point in points if point.known >= MIN_KNOWN] or points[:1]
    best = max(usable, key=lambda point: point.right)
    close = [point for point in usable if point.right >= best.right - best.error]
    return min(close, key=lambda point: (round(point.calls, 6), -point.right))


def undominated(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in both accuracy and cost, the cheapest first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (round(one.calls, 6), -one.right)):
        if not found or point.right > found[-1].right + 1e-9:
            found.append(point)
    return found


def _scored(case: QuestionCase, record: Answer, replayed: Replayed | Unknown) -> tuple[float, float] | None:
    """Whether the outcome is right, and its calls; None for unknown."""
    if isinstance(replayed, Unknown):
        return None
    shown = record.model_copy(update={"status": replayed.status, "answer": replayed.answer})
    return float(outcome(case, shown)[0] >= 1.0), float(replayed.lm_calls)


def _report_decisions(
    records: Sequence[Answer], live: Dials, bounded: Dials, thresholds: Sequence[float], hops: Sequence[int]
) -> None:
    """Without labels: what each threshold alone would change."""
    changed = [
        *(replace(live, relevance=one) for one in sorted(thresholds)),
        *(replace(live, grounding=one) for one in sorted(thresholds)),
        *(replace(live, utility=one) for one in sorted(thresholds)),
    ]
    for dials in [live, *changed, *(replace(live, max_hops=n) for n in sorted(hops))]:
        results = [replay(record, dials, bounded) for record in records]
        known = [one for one in results if isinstance(one, Replayed)]
        statuses = Counter(one.status for one in known)
        calls = sum(one.lm_calls for one in known) / max(len(known), 1)
        unknown = Counter(one.reason for one in results if isinstance(one, Unknown))
        sys.stdout.write(
            f"{_shown(dials)}: {', '.join(f'{k} {n}' for k, n in statuses.most_common()) or '-'}, {calls:.2f} calls"
            + "".join(f", unknown {n} ({reason})" for reason, n in unknown.most_common())
            + "\n"
        )


def _report_frontier(points: Sequence[Point], chosen: Point, cases: int) -> None:
    write = sys.stdout.write
    write(f"\naccuracy against cost on {cases} cases of train and dev\nlive:   {_line(points[0])}\n")
    for point in undominated([one for one in points if one.known >= MIN_KNOWN]):
        write(f"        {_line(point)}\n")
    write(f"picked: {_line(chosen)}\n")
    hidden = sum(one.known < MIN_KNOWN for one in points)
    write(f"{hidden} of {len(points)} settings are known on less than {MIN_KNOWN:.0%} of the cases and left out\n")
    values: Mapping[str, object] = {
        "RELEVANCE_THRESHOLD": chosen.dials.relevance,
        "GROUNDING_THRESHOLD": chosen.dials.grounding,
        "UTILITY_THRESHOLD": chosen.dials.utility,
        **({"MAX_HOPS": chosen.dials.max_hops} if chosen.dials.max_hops else {}),
    }
    write("".join(f"ADAPTIVE_RAG_{name}={value}\n" for name, value in values.items()))


def _line(point: Point) -> str:
    return (
        f"{_shown(point.dials)}: right {point.right:.3f} ± {point.error:.3f}, {point.calls:.2f} calls, "
        f"known {point.known:.0%}"
    )


def _shown(dials: Dials) -> str:
    hops = f" hops {dials.max_hops}" if dials.max_hops else ""
    return f"relevance {dials.relevance:g} grounding {dials.grounding:g} utility {dials.utility:g}{hops}"
