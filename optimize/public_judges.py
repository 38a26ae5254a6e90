"""The judges on public judgements: the language model's opinion, what is seen without one, and both weighed.

What a rule decides stays decided in every line, as in the program. Thresholds and weights come from the labelled
cases of this project (train and dev) or from what is promoted, never from the public rows.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimize.gold import GoldPassages, sample_passages
from optimize.judge_fit import Weighed, best_threshold, fit_alone, fit_judge, heard_scores, scores, weighed_cases
from optimize.public_report import Cell, Line, Report
from optimize.recording import (
    JUDGE_CLASSES,
    Judge,
    JudgeCase,
    Opinion,
    Recording,
    ask_judge,
    judge_cases,
    load_prompt,
    record_all,
)
from optimize.statistics import area_interval, balanced_interval, paired_gain
from programs import background, budget
from programs.build import uncompiled
from programs.module import Resources
from programs.similarity import Similarity
from programs.state import judge_path
from signatures.vocabulary import JudgeName

SOURCE = "public"
"""In front of the file names of recordings, so that public opinions and those on our own cases never mix."""
FEWEST = 20
"""Recorded cases of our own from which a threshold is chosen; as few as a fit takes."""


@dataclass(frozen=True)
class Side:
    """A way to judge, and the score that it gives each row of a list."""

    name: str
    seen: Sequence[Weighed]
    values: Sequence[float]
    threshold: float

    @property
    def right(self) -> list[bool]:
        """Whether each row is judged rightly."""
        return [(v >= self.threshold) == one.case.passed for v, one in zip(self.values, self.seen, strict=True)]


def measure_judge(
    name: JudgeName, cases: Sequence[JudgeCase], resources: Resources, similarity: Similarity, *, record: bool
) -> Report:
    """Measure one judge.

    Args:
        name: Which.
        cases: The public rows.
        resources: Of the program as it runs, with the compiled state that it uses.
        similarity: Compares texts with the program's embedder.
        record: Whether to ask the language model about rows that are not recorded yet.
    """
    judge = _plain_judge(name, resources)
    identity, none = resources.lms.identity("judge"), GoldPassages([])
    recording = Recording(judge, resources.settings, identity, SOURCE)
    if record:
        record_all(recording, cases, none, f"{SOURCE} {name}")
    heard = recording.opinions(cases)
    report = Report(name, len(cases))
    if len(heard) < len(cases):
        report.notes.append(f"not recorded, and left out where the language model counts: {len(cases) - len(heard)}")
    sys.stderr.write(f"{name}: features of {len(cases)} rows and of our own cases\n")
    seen = weighed_cases(cases, {**unasked(judge, cases, none), **heard}, none, similarity)
    recorded = [one for one in seen if one.case.id in heard]
    own, own_recorded = _own_cases(name, judge, Recording(judge, resources.settings, identity), similarity)
    sides = []
    if recorded:
        sides += _heard_sides(recorded, own_recorded, report)
    sides += _side_alone(name, seen, own, report)
    if recorded:
        sides += _weighed_sides(name, recorded, own_recorded, resources, report)
    ruled = sum(one.decided is not None for one in seen)
    report.notes.append(f"decided by a rule, in every line: {ruled}")
    _fill(report, seen, sides)
    return report


def unasked(judge: Judge, cases: Sequence[JudgeCase], gold: GoldPassages) -> dict[str, Opinion]:
    """What the judge says of each case when it may make no call: the verdict of a rule, or an error."""
    found = {}
    for case in cases:
        with budget.spending(budget.Budget(max_lm_calls=0)):
            verdict = background.run(ask_judge(judge, case, gold))
        found[case.id] = Opinion(case.id, verdict.score, verdict.source, verdict.error_kind or "", 0.0, 0, 0)
    return found


def _plain_judge(name: JudgeName, resources: Resources) -> Judge:
    """The program's judge with its prompt, which weighs nothing."""
    judge = JUDGE_CLASSES[name](uncompiled(resources))
    if resources.state is not None:
        load_prompt(judge, resources.state.predictors.get(judge_path(name)))
    return judge


def _own_cases(
    name: JudgeName, judge: Judge, recording: Recording, similarity: Similarity
) -> tuple[list[Weighed], list[Weighed]]:
    """Train and dev cases of this project: all of them, and those that the language model was asked about."""
    cases = [case for case in judge_cases(name) if case.split != "test"]
    gold, heard = sample_passages(), recording.opinions(cases)
    own = weighed_cases(cases, {**unasked(judge, cases, gold), **heard}, gold, similarity)
    return own, [one for one in own if one.case.id in heard]


def _heard_sides(recorded: Sequence[Weighed], own: Sequence[Weighed], report: Report) -> list[Side]:
    values = heard_scores(recorded)
    sides = [Side("language model", recorded, values, 0.5)]
    if len(own) < FEWEST:
        report.notes.append(f"too few of our own cases are recorded to choose a threshold for it: {len(own)}")
        return sides
    labels = np.asarray([one.case.passed for one in own], dtype=bool)
    cut = best_threshold(np.asarray(heard_scores(own), dtype=np.float64), labels)
    return [*sides, Side(f"language model, threshold of {len(own)} own cases", recorded, values, cut)]


def _side_alone(name: JudgeName, seen: Sequence[Weighed], own: Sequence[Weighed], report: Report) -> list[Side]:
    try:
        model, cut = fit_alone(name, own)
    except ValueError as error:
        report.notes.append(f"features without a language model are not fitted: {error}")
        return []
    values = [one.decided if one.decided is not None else model.probability(one.features) for one in seen]
    return [Side(f"features alone, fitted to {len(own)} own cases", seen, values, cut)]


def _weighed_sides(
    name: JudgeName, recorded: Sequence[Weighed], own: Sequence[Weighed], resources: Resources, report: Report
) -> list[Side]:
    state = resources.judges.get(name)
    if state is not None:
        return [Side("weighed, as promoted", recorded, scores(state, recorded), resources.thresholds[name])]
    try:
        state = fit_judge(name, own)
    except ValueError as error:
        report.notes.append(f"not weighed, as nothing is promoted and nothing can be fitted: {error}")
        return []
    side = Side(f"weighed, fitted to {len(own)} own cases", recorded, scores(state, recorded), state.threshold)
    return [side]


def _fill(report: Report, seen: Sequence[Weighed], sides: Sequence[Side]) -> None:
    """Lines, comparison, sources and cases of the sides."""
    sources: dict[str, dict[str, Cell]] = {}
    for source in sorted({one.case.kind for one in seen}):
        sources[source] = {"rows": sum(one.case.kind == source for one in seen)}
    scored: dict[str, Mapping[str, float]] = {}
    for number, side in enumerate(sides, start=1):
        labels, groups = [one.case.passed for one in side.seen], [one.case.group for one in side.seen]
        balanced, area = balanced_interval(side.right, labels, groups), area_interval(side.values, labels, groups)
        figures = {"balanced accuracy": balanced, "AUC": area}
        report.lines.append(Line(f"({number}) {side.name}", len(side.seen), figures, side.threshold))
        for source in sources:
            own = [r for r, one in zip(side.right, side.seen, strict=True) if one.case.kind == source]
            if own:
                sources[source][f"accuracy ({number})"] = sum(own) / len(own)
        scored[side.name] = dict(zip((one.case.id for one in side.seen), side.values, strict=True))
    report.tables["by source"] = sources
    plain = next((side for side in sides if side.name == "language model"), None)
    weighed = next((side for side in sides if side.name.startswith("weighed")), None)
    if plain is not None and weighed is not None:
        pair = [[float(value) for value in side.right] for side in (plain, weighed)]
        gain, low, high = paired_gain(pair[0], pair[1], [one.case.group for one in plain.seen])
        report.notes.append(f"accuracy that weighing adds to the language model: {gain:+.3f} [{low:+.3f}, {high:+.3f}]")
    for one in seen:
        values = {name: round(given[one.case.id], 4) for name, given in scored.items() if one.case.id in given}
        report.cases.append({"id": one.case.id, "expected": one.case.passed, "scores": values})
