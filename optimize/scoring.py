"""A student on cases: a row a case, the figures of a split, and a run that holds them."""

from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import numpy as np

from data.schema import Case
from optimize.judge_fit import area, balanced_accuracy, calibration_error
from optimize.kept_replies import Ledger
from optimize.students import predictors
from optimize.tasks import Task
from optimize.tracking import Run, new_run
from programs.settings import Settings
from programs.state import CompiledState, signature_digest

Row = dict[str, Any]


def score(task: Task, student: dspy.Module, examples: Sequence[dspy.Example], ledger: Ledger) -> list[Row]:
    """Run a student on examples, one after the other.

    Args:
        task: Knows the metric.
        student: What is scored.
        examples: Of dev or test.
        ledger: Says what a case cost; a reply that was kept counts as when it was paid for.
    """
    rows = []
    for one in examples:
        before = (ledger.calls, ledger.seconds, ledger.prompt_tokens, ledger.completion_tokens)
        made = student(**one.inputs())
        result = task.metric(one, made)
        after = (ledger.calls, ledger.seconds, ledger.prompt_tokens, ledger.completion_tokens)
        calls, seconds, prompt, completion = (b - a for a, b in zip(before, after, strict=True))
        case = task.desk.cases[one.id]
        row = {
            "id": case.id,
            "group": case.group,
            "split": case.split,
            "kind": case.kind,
            "lang": case.lang,
            "score": result.score,
            "outcome": outcome(task, made),
            "expected": expected(case),
            "lm_calls": calls,
            "seconds": round(seconds, 3),
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "feedback": result.feedback,
        }
        if hasattr(case, "intent"):
            row["intent"] = case.intent
        if task.component == "router" and not made.get("error_kind"):
            row["confidence"] = made.confidence
        rows.append(row)
    return rows


def outcome(task: Task, made: dspy.Prediction) -> Any:
    """What a row shows of a prediction."""
    if made.get("error_kind"):
        return f"unusable: {made.error_kind}"
    match task.component:
        case "router":
            return "clarify" if made.strategy == "clarify_needed" else made.intent
        case "generator":
            return made.answer
        case "rewriter":
            return made.query
        case "program":
            return made.record.status
    return made.score


def expected(case: Case) -> Any:
    """What a row shows of the right outcome."""
    for name in ("passed", "reference", "answerable"):
        if hasattr(case, name):
            return getattr(case, name)
    return "clarify" if getattr(case, "clarify", False) else getattr(case, "intent", "")


def figures(task: Task, rows: Sequence[Row]) -> dict[str, float]:
    """Figures of the rows of one split."""
    found = {
        "score": float(np.mean([row["score"] for row in rows])),
        "cases": float(len(rows)),
        "lm_calls": float(np.mean([row["lm_calls"] for row in rows])),
        "seconds": float(np.mean([row["seconds"] for row in rows])),
        "unusable": float(np.mean([str(row["outcome"]).startswith("unusable") for row in rows])),
    }
    if task.component == "router":
        found["accuracy"] = float(np.mean([row["outcome"] == row["expected"] for row in rows]))
        due = [row["outcome"] == "clarify" for row in rows if row["expected"] == "clarify"]
        if due:
            found["clarification_recall"] = float(np.mean(due))
    elif task.component in ("relevance", "grounding", "utility"):
        values = [row["outcome"] if isinstance(row["outcome"], float) else 0.0 for row in rows]
        labels = [bool(row["expected"]) for row in rows]
        passed = [(row["score"] == 1.0) == label for row, label in zip(rows, labels, strict=True)]
        found["balanced_accuracy"] = balanced_accuracy(passed, labels)
        found |= {"auc": area(values, labels), "ece": calibration_error(values, labels)}
    return {name: round(value, 4) for name, value in found.items()}


def write_child(
    parent: Run, name: str, task: Task, rows: Sequence[Row], *, settings: Settings, state: CompiledState | None = None
) -> Run:
    """A run below `parent` with its cases, its figures and, where it could be promoted, its state."""
    child = new_run(parent.experiment, name, parent=parent, settings=settings)
    child.params = dict(parent.params)
    child.write_table("cases.jsonl", rows)
    for split in ("dev", "test"):
        of = [row for row in rows if row["split"] == split]
        if of:
            child.metrics |= {f"{split}/{key}": value for key, value in figures(task, of).items()}
    if state is not None:
        child.write_json("state.json", state.model_dump(mode="json"))
    return child


def compiled_state(
    task: Task, student: dspy.Module, *, lm: Mapping[Any, str], embedder: str, card: Mapping[str, Any]
) -> CompiledState:
    """The prompts of a student that differ from those as they are written."""
    written = predictors(task.component, task.student())
    own = predictors(task.component, student)
    states = {path: predict.dump_state() for path, predict in own.items()}
    changed = {path: one for path, one in states.items() if one != written[path].dump_state()}
    return CompiledState(
        lm=dict(lm),
        embedder=embedder,
        signatures={path: signature_digest(written[path].signature) for path in changed},
        predictors=changed,
        card={task.component: dict(card)},
    )
