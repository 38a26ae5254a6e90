"""Fits how a judge weighs its evidence, and measures it against the language model alone.

The opinions of the language model are recorded first (`optimize.recording`), which takes seconds a case and is
done once. The result is a run with two children, `baseline` and `calibrated`, for `compare` and `promote`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from optimize.cases import data_digest
from optimize.gold import sample_passages
from optimize.judge_fit import (
    Weighed,
    area,
    balanced_accuracy,
    best_threshold,
    calibration_error,
    fit_judge,
    heard_scores,
    scores,
    weighed_cases,
    worth,
)
from optimize.recording import JUDGE_CLASSES, Opinion, Recording, judge_cases, plain_resources
from optimize.router_fit import main as fit_router_main
from optimize.statistics import interval, paired_gain
from optimize.tracking import Run, finish, git_commit, new_run
from programs.retrieval.embedding import load_embedder
from programs.settings import Settings, load_settings
from programs.similarity import Similarity
from programs.state import CompiledState, signature_digest
from signatures.vocabulary import JUDGES, JudgeName

COMPONENTS = ("router", *JUDGES)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--component", choices=COMPONENTS, action="append", help="which; all when none is named")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--worth", action="store_true", help="also measure what each feature adds")
    parser.add_argument("--missing", action="store_true", help="record cases that were not recorded yet, first")


def run(arguments: argparse.Namespace) -> int:
    """Fit and measure; nothing is promoted."""
    wanted = arguments.component or COMPONENTS
    if "router" in wanted:
        fit_router_main([])
    for judge in JUDGES:
        if judge in wanted:
            calibrate_judge(judge, line=arguments.lm, with_worth=arguments.worth, missing=arguments.missing)
    return 0


def calibrate_judge(name: JudgeName, *, line: str | None, with_worth: bool, missing: bool) -> Run:
    """Fit one judge and keep the result as a run.

    Args:
        name: Which judge.
        line: Language model, as in `ADAPTIVE_RAG_LM`; None takes the settings'.
        with_worth: Whether to measure what each feature adds, which takes as many fits.
        missing: Whether to ask the language model about cases that were not recorded.
    """
    settings = load_settings(**({"lm": line} if line else {}))
    resources = plain_resources(settings)
    identity = resources.lms.identity("judge")
    judge = JUDGE_CLASSES[name](resources)
    recording = Recording(judge, settings, identity)
    cases, gold = judge_cases(name), sample_passages()
    if missing:
        for case, opinion in recording.record(cases, gold):
            sys.stderr.write(f"{name} {case.id} {opinion.error or opinion.score}\n")
    embedder = load_embedder(settings.embedder)
    opinions = recording.opinions(cases)
    everything = weighed_cases(cases, opinions, gold, Similarity(embedder))
    if len(everything) < len(cases):
        sys.stderr.write(f"{name}: {len(cases) - len(everything)} cases are not recorded and left out (--missing)\n")
    known = [one for one in everything if one.case.split != "test"]
    state = fit_judge(name, known)
    plain = dict(zip((one.case.id for one in everything), heard_scores(everything), strict=True))
    fitted = dict(zip((one.case.id for one in everything), scores(state, everything), strict=True))

    parent = new_run(name, f"calibrate {name}", settings=settings)
    parent.params = {
        "component": name,
        "optimizer": "calibration",
        "lm": identity,
        "embedder": embedder.name,
        "data": data_digest(name),
        "git": git_commit(),
        "cases": len(everything),
    }
    baseline = _write_child(parent, everything, opinions, "baseline", plain, 0.5, settings)
    calibrated = _write_child(parent, everything, opinions, "calibrated", fitted, state.threshold, settings)
    path = f"self_rag.judges.{name}.judge"
    compiled = CompiledState(
        lm={"judge": identity},
        embedder=embedder.name,
        signatures={path: signature_digest(judge.judge.signature)},
        judges={name: state},
        card={name: {**parent.params, **calibrated.metrics}},
    )
    calibrated.write_json("state.json", compiled.model_dump(mode="json"))
    if with_worth:
        calibrated.write_json("worth.json", worth(name, known))
    finish(parent, baseline, calibrated, settings=settings)
    _report(name, parent, everything, plain, fitted, state.threshold)
    return parent


def _write_child(
    parent: Run,
    cases: Sequence[Weighed],
    opinions: Mapping[str, Opinion],
    name: str,
    values: dict[str, float],
    threshold: float,
    settings: Settings,
) -> Run:
    child = new_run(parent.experiment, name, parent=parent, settings=settings)
    child.params = {**parent.params, "threshold": threshold}
    rows = []
    for one in cases:
        passed = values[one.case.id] >= threshold
        # Weighing costs nothing beside what the opinion did; the gate holds that against a compiled prompt's.
        opinion = opinions[one.case.id]
        rows.append(
            {
                "id": one.case.id,
                "group": one.case.group,
                "split": one.case.split,
                "kind": one.case.kind,
                "lang": one.case.lang,
                "score": float(passed == one.case.passed),
                "outcome": values[one.case.id],
                "expected": one.case.passed,
                "lm_calls": int(opinion.source == "lm" or opinion.prompt_tokens > 0),
                "seconds": opinion.seconds,
                "prompt_tokens": opinion.prompt_tokens,
                "completion_tokens": opinion.completion_tokens,
            }
        )
    child.write_table("cases.jsonl", rows)
    for split in ("dev", "test"):
        chosen = [one for one in cases if one.case.split == split]
        if chosen:
            child.metrics |= {f"{split}/{key}": value for key, value in _figures(chosen, values, threshold).items()}
    return child


def _figures(cases: Sequence[Weighed], values: dict[str, float], threshold: float) -> dict[str, float]:
    own, labels = [values[one.case.id] for one in cases], [one.case.passed for one in cases]
    return {
        "balanced_accuracy": balanced_accuracy([value >= threshold for value in own], labels),
        "auc": area(own, labels),
        "ece": calibration_error(own, labels),
        "cases": float(len(cases)),
    }


def _report(
    name: str,
    parent: Run,
    cases: Sequence[Weighed],
    plain: dict[str, float],
    fitted: dict[str, float],
    threshold: float,
) -> None:
    write = sys.stdout.write
    write(f"\n{name}: run {parent.id}, threshold {threshold}\n")
    known = [one for one in cases if one.case.split != "test"]
    best = best_threshold(
        np.asarray([plain[one.case.id] for one in known]), np.asarray([one.case.passed for one in known], dtype=bool)
    )
    sides = (
        ("language model alone, 0.5", plain, 0.5),
        (f"language model alone, {best}", plain, best),
        ("weighed", fitted, threshold),
    )
    for split in ("dev", "test"):
        chosen = [one for one in cases if one.case.split == split]
        groups = [one.case.group for one in chosen]
        right = []
        for label, values, cut in sides:
            figures = _figures(chosen, values, cut)
            right.append([float((values[o.case.id] >= cut) == o.case.passed) for o in chosen])
            mean = interval(right[-1], groups)
            write(
                f"  {split:5} {label:28} balanced {figures['balanced_accuracy']:.3f}  accuracy {mean[0]:.3f}"
                f" [{mean[1]:.3f}, {mean[2]:.3f}]  AUC {figures['auc']:.3f}  ECE {figures['ece']:.3f}"
                f"  n {len(chosen)}\n"
            )
        gain = paired_gain(right[0], right[2], groups)
        write(f"  {split:5} gain {gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]\n")
    test = [one for one in cases if one.case.split == "test"]
    wrong = Counter(o.case.kind for o in test if (fitted[o.case.id] >= threshold) != o.case.passed)
    total = Counter(o.case.kind for o in test)
    write("  wrong on test by kind: " + ", ".join(f"{k} {n}/{total[k]}" for k, n in wrong.most_common()) + "\n")
