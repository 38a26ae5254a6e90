"""DSPy's optimizers, each with three budgets: what it is built with, what it will run, and what it tried."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from optimize.tasks import Task
from programs.retrieval.base import Embedder

Budget = Literal["light", "medium", "heavy"]
OptimizerName = Literal["labeled", "bootstrap", "mipro", "gepa", "simba", "knn"]
BUDGETS: tuple[Budget, ...] = ("light", "medium", "heavy")
OPTIMIZERS: tuple[OptimizerName, ...] = ("labeled", "bootstrap", "mipro", "gepa", "simba", "knn")
PACKAGES: Mapping[OptimizerName, tuple[str, ...]] = {"mipro": ("optuna",), "gepa": ("gepa",)}
REFLECTING: tuple[OptimizerName, ...] = ("mipro", "gepa", "simba")
"""Optimizers that ask the reflection language model for better instructions."""
LABELS_ONLY: tuple[OptimizerName, ...] = ("labeled", "knn")
"""Optimizers that need right outputs of a single prompt, which there are none of for the whole program."""
SIZES: Mapping[OptimizerName, Mapping[Budget, Mapping[str, int]]] = {
    "labeled": {"light": {"demos": 4}, "medium": {"demos": 8}, "heavy": {"demos": 16}},
    "bootstrap": {
        "light": {"demos": 4, "candidates": 0},
        "medium": {"demos": 4, "candidates": 4},
        "heavy": {"demos": 8, "candidates": 10},
    },
    "mipro": {
        "light": {"demos": 3, "candidates": 4, "trials": 6},
        "medium": {"demos": 3, "candidates": 6, "trials": 12},
        "heavy": {"demos": 4, "candidates": 10, "trials": 24},
    },
    "gepa": {"light": {"evaluations": 5}, "medium": {"evaluations": 10}, "heavy": {"evaluations": 20}},
    "simba": {
        "light": {"steps": 2, "candidates": 3, "demos": 3},
        "medium": {"steps": 4, "candidates": 4, "demos": 4},
        "heavy": {"steps": 8, "candidates": 6, "demos": 4},
    },
    "knn": {"light": {"demos": 3}, "medium": {"demos": 5}, "heavy": {"demos": 8}},
}
MINIBATCH = 3
"""Cases that GEPA reflects on at once."""
NEVER = 10**9
"""Errors after which an optimizer gives up: outages end the run elsewhere, other errors are scores."""
THREADS = 1
"""More would make the order of calls, and on one slot even the replies, differ from run to run."""


@dataclass(frozen=True)
class Trial:
    """A program that an optimizer scored on all dev cases."""

    name: str
    program: dspy.Module


def estimated_runs(name: OptimizerName, budget: Budget, train: int, dev: int, prompts: int) -> tuple[int, int]:
    """How often an optimizer will run the student, and how often it will ask the reflection model; rough.

    Args:
        name, budget: Which optimizer.
        train, dev: Cases.
        prompts: Predictors of the student.
    """
    size = SIZES[name][budget]
    # One run in two is taken to be good enough for a demonstration.
    collected = min(train, 2 * size.get("demos", 0))
    match name:
        case "labeled":
            return 0, 0
        case "bootstrap":
            count = size["candidates"]
            return (collected, 0) if not count else ((count + 1) * collected + (count + 3) * dev, 0)
        case "mipro":
            runs = (size["candidates"] - 2) * collected + (size["trials"] + 1) * dev
            return runs, 3 + math.ceil(train / 10) + 3 * prompts * size["candidates"]
        case "gepa":
            runs = metric_calls(budget, dev)
            return runs, max(1, (runs - dev) // (2 * MINIBATCH))
        case "simba":
            steps, count, batch = size["steps"], size["candidates"], batch_size(train)
            return steps * batch * (2 * count + 1) + (count + 1) * train, steps * (count + 1)
        case "knn":
            return train, 0


def metric_calls(budget: Budget, dev: int) -> int:
    """Runs that GEPA may spend."""
    return SIZES["gepa"][budget]["evaluations"] * dev + 10 * MINIBATCH


def batch_size(train: int) -> int:
    """Cases of a step of SIMBA, which needs as many at least."""
    return min(16, train)


def optimize_student(
    name: OptimizerName, budget: Budget, task: Task, *, seed: int, reflection: dspy.LM, embedder: Embedder
) -> tuple[dspy.Module, list[Trial]]:
    """Let an optimizer of DSPy work on the student of a task.

    Args:
        name, budget: Which optimizer.
        task: What is compiled; its train cases may be shown, its dev cases only scored.
        seed: Of the optimizer, where it takes one.
        reflection: Proposes instructions.
        embedder: Finds neighbours.

    Returns:
        The compiled student, and what was tried on the way.
    """
    logging.getLogger("dspy").setLevel(logging.WARNING)
    makers: dict[OptimizerName, Callable[..., tuple[dspy.Module, list[Trial]]]] = {
        "labeled": _labeled,
        "bootstrap": _bootstrap,
        "mipro": _mipro,
        "gepa": _gepa,
        "simba": _simba,
        "knn": _knn,
    }
    return makers[name](task, SIZES[name][budget], budget=budget, seed=seed, reflection=reflection, embedder=embedder)


def _labeled(task: Task, size: Mapping[str, int], **_: Any) -> tuple[dspy.Module, list[Trial]]:
    # The examples come in seeded order, the strata in turn; drawing again would lose the balance.
    made = dspy.LabeledFewShot(k=size["demos"]).compile(task.student(), trainset=task.labelled, sample=False)
    return made, []


def _bootstrap(task: Task, size: Mapping[str, int], **_: Any) -> tuple[dspy.Module, list[Trial]]:
    shared: dict[str, Any] = {
        "metric": task.number,
        "metric_threshold": task.good,
        "max_bootstrapped_demos": size["demos"],
        "max_labeled_demos": 0,
        "max_errors": NEVER,
    }
    if not size["candidates"]:
        return dspy.BootstrapFewShot(**shared).compile(task.student(), trainset=task.train), []
    search = dspy.BootstrapFewShotWithRandomSearch(
        **shared, num_candidate_programs=size["candidates"], num_threads=THREADS
    )
    made = search.compile(task.student(), trainset=task.train, valset=task.dev)
    tried = sorted(made.candidate_programs, key=lambda one: one["seed"])
    return made, [Trial(f"trial {n}", one["program"]) for n, one in enumerate(tried, start=1)]


def _mipro(
    task: Task, size: Mapping[str, int], *, seed: int, reflection: dspy.LM, **_: Any
) -> tuple[dspy.Module, list[Trial]]:
    optimizer = dspy.MIPROv2(
        metric=task.number,
        prompt_model=reflection,
        auto=None,
        num_candidates=size["candidates"],
        max_bootstrapped_demos=size["demos"],
        max_labeled_demos=0,
        metric_threshold=task.good,
        num_threads=THREADS,
        max_errors=NEVER,
        seed=seed,
    )
    made = optimizer.compile(
        task.student(),
        trainset=task.train,
        valset=task.dev,
        num_trials=size["trials"],
        seed=seed,
        minibatch=False,
        # The student's source says nothing about the task.
        program_aware_proposer=False,
    )
    logs = sorted(made.trial_logs.items())
    tried = [log["full_eval_program"] for _, log in logs if "full_eval_program" in log]
    return made, [Trial(f"trial {n}", one) for n, one in enumerate(tried, start=1)]


def _gepa(
    task: Task, size: Mapping[str, int], *, budget: Budget, seed: int, reflection: dspy.LM, **_: Any
) -> tuple[dspy.Module, list[Trial]]:
    optimizer = dspy.GEPA(
        metric=task.metric,
        max_metric_calls=metric_calls(budget, len(task.dev)),
        reflection_minibatch_size=min(MINIBATCH, len(task.train)),
        reflection_lm=reflection,
        track_stats=True,
        num_threads=THREADS,
        warn_on_score_mismatch=False,
        seed=seed,
    )
    made = optimizer.compile(task.student(), trainset=task.train, valset=task.dev)
    tried = list(made.detailed_results.candidates)
    return made, [Trial(f"trial {n}", one) for n, one in enumerate(tried, start=1)]


def _simba(
    task: Task, size: Mapping[str, int], *, seed: int, reflection: dspy.LM, **_: Any
) -> tuple[dspy.Module, list[Trial]]:
    optimizer = dspy.SIMBA(
        metric=task.number,
        bsize=batch_size(len(task.train)),
        num_candidates=size["candidates"],
        max_steps=size["steps"],
        max_demos=size["demos"],
        prompt_model=reflection,
        num_threads=THREADS,
    )
    made = optimizer.compile(task.student(), trainset=task.train, seed=seed)
    # Chosen on train: none of them was scored on all dev cases.
    return made, []


def _knn(task: Task, size: Mapping[str, int], *, embedder: Embedder, **_: Any) -> tuple[dspy.Module, list[Trial]]:
    count = min(size["demos"], len(task.train))
    optimizer = dspy.KNNFewShot(
        k=count,
        trainset=task.train,
        vectorizer=dspy.Embedder(embedder.encode_query, caching=False),
        metric=task.number,
        metric_threshold=task.good,
        max_bootstrapped_demos=count,
        max_labeled_demos=0,
        max_errors=NEVER,
    )
    return optimizer.compile(task.student()), []
