"""Lets an optimizer write better prompts for a component, and measures what that gained.

    preflight: data, metric, packages, one reply; then the cost, and a question
    baseline on dev -> optimizer on train, choosing on dev -> compiled on dev
    demonstrations are checked
    baseline and compiled on test, once

Interrupted, the same command goes on without paying for a reply twice. The result is a run with children
`baseline`, `trial N` and `compiled`; only `promote` puts it into the running program.
"""

import argparse
import contextlib
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy

from data import loading
from data.schema import Case
from optimize import compile_report, demos
from optimize.examples import COMPONENTS, Component
from optimize.kept_replies import ForgetUnreadable, KeptLMs, Ledger, Outage, ReplyStore
from optimize.optimizers import BUDGETS, OPTIMIZERS, Budget, OptimizerName, Trial, optimize_student
from optimize.preflight import Estimate, agree, check_possible, preflight
from optimize.scoring import Row, compiled_state, score, write_child
from optimize.students import ROLES, predictors
from optimize.tasks import Task, open_task
from optimize.tracking import Run, finish, git_commit, new_run
from programs.build import build_resources, uncompiled
from programs.errors import AdaptiveRAGError
from programs.module import Resources
from programs.prompting import repeatable_fences
from programs.retrieval.embedding import load_embedder
from programs.settings import Role, Settings, load_settings
from signatures.vocabulary import JUDGES

FILES: Mapping[Component, tuple[str, ...]] = {
    "router": ("route.jsonl",),
    **{judge: (f"{judge}.jsonl",) for judge in JUDGES},
    "generator": ("qa.jsonl",),
    "rewriter": ("rewrite.jsonl",),
    "program": ("qa.jsonl", "route.jsonl"),
}


class CompileAborted(AdaptiveRAGError):
    """The language model failed too often; what was paid for is kept."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--component", choices=COMPONENTS, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--budget", choices=BUDGETS, default="light")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--reflection-lm", help="language model that proposes instructions")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cases and of the optimizer")
    parser.add_argument("--limit", type=int, help="most cases of each split")
    parser.add_argument("--max-failures", type=float, default=0.05, help="share of failed calls that ends the run")
    parser.add_argument("--yes", action="store_true", help="spend what the estimate says without asking")


def run(arguments: argparse.Namespace) -> int:
    """Compile one component; nothing is promoted."""
    lines = {"lm": arguments.lm, "reflection_lm": arguments.reflection_lm}
    settings = load_settings(**{name: line for name, line in lines.items() if line})
    compile_component(
        arguments.component,
        arguments.optimizer,
        arguments.budget,
        settings=settings,
        seed=arguments.seed,
        limit=arguments.limit,
        max_failures=arguments.max_failures,
        yes=arguments.yes,
    )
    return 0


def compile_component(
    component: Component,
    optimizer: OptimizerName,
    budget: Budget,
    *,
    settings: Settings,
    seed: int = 0,
    limit: int | None = None,
    max_failures: float = 0.05,
    yes: bool = False,
) -> Run:
    """Preflight, baseline, compile, check, held-out comparison, run.

    Args:
        component: What is compiled.
        optimizer, budget: With what.
        settings: Language models with their prices, and where runs and replies are kept.
        seed: Of the order of cases and of the optimizer.
        limit: Most cases of each split.
        max_failures: Share of requests that may fail.
        yes: Whether the cost needs no question.

    Returns:
        The parent run.

    Raises:
        CompileRefused, MissingPackageError: Before anything was spent.
        CompileAborted: The language model was gone; the same command goes on later.
        DemonstrationError: The result may not be used.
    """
    check_possible(component, optimizer)
    started = time.monotonic()
    ledger = Ledger(limit=max_failures)
    store = ReplyStore(settings.home / "replies" / "replies.sqlite")
    try:
        with repeatable_fences():
            resources = _resources(component, settings, store, ledger)
            held = demos.held_out()

            def clean(case: Case) -> bool:
                return not held.found_in_case(case)

            with open_task(component, resources, limit=limit, seed=seed, clean=clean) as task, _dspy(task, store):
                estimate = preflight(task, optimizer, budget, ledger, settings)
                agree(estimate, yes=yes)
                parent = new_run(component, f"compile {component} {optimizer}", settings=settings)
                parent.params = _params(task, optimizer, budget, settings, seed, limit, estimate)
                return _compile(task, optimizer, budget, parent, held, ledger, settings, started)
    except Outage as outage:
        raise CompileAborted(
            f"The compile was ended: {outage}",
            hint="What was paid for is kept: the same command goes on where it stopped.",
        ) from outage
    finally:
        store.close()


def _compile(
    task: Task,
    optimizer: OptimizerName,
    budget: Budget,
    parent: Run,
    held: demos.HeldOut,
    ledger: Ledger,
    settings: Settings,
    started: float,
) -> Run:
    resources = task.desk.resources
    plain = task.student()
    baseline = score(task, plain, task.dev, ledger)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # optimizers print
            compiled, trials = optimize_student(
                optimizer,
                budget,
                task,
                seed=parent.params["seed"],
                reflection=resources.lms["reflection"],
                embedder=load_embedder(settings.embedder),
            )
    except dspy.DSPyError as error:
        # Replies of the component are scores, whatever they are; only the optimizer's own calls come here.
        said = str(error).strip().splitlines()[0]
        raise CompileAborted(
            f"The language model that proposes instructions gave no usable reply: {said}",
            hint="Take another one with --reflection-lm; what was paid for is kept.",
        ) from error
    own = predictors(task.component, compiled)
    dropped = sum(demos.tidy(task, predict) for predict in own.values())
    demos.check(task, own, {path: _role(path) for path in own}, held)
    better = score(task, compiled, task.dev, ledger)
    tried = [(trial, _tried(task, trial, ledger)) for trial in trials]
    # Test is touched here, once, when nothing can be chosen any more.
    baseline += score(task, plain, task.test, ledger)
    better += score(task, compiled, task.test, ledger)

    identities: dict[Role, str] = {role: resources.lms.identity(role) for role in ROLES[task.component]}
    embedder = load_embedder(settings.embedder).name
    children = [write_child(parent, "baseline", task, baseline, settings=settings)]
    for trial, rows in tried:
        card = {**_card(parent.params), "trial": trial.name}
        state = compiled_state(task, trial.program, lm=identities, embedder=embedder, card=card)
        children.append(write_child(parent, trial.name, task, rows, settings=settings, state=state))
    state = compiled_state(task, compiled, lm=identities, embedder=embedder, card=_card(parent.params))
    # Neighbours are looked up for each question: there is no prompt that could be stored.
    storable = bool(state.predictors) and optimizer != "knn"
    last = write_child(parent, "compiled", task, better, settings=settings, state=state if storable else None)
    last.params["demos_dropped"] = dropped
    children.append(last)
    parent.params |= {
        "calls": ledger.paid_calls,
        "prompt_tokens": ledger.paid_prompt,
        "completion_tokens": ledger.paid_completion,
        "money": ledger.paid_cost,
        "currency": settings.currency,
        "seconds": round(time.monotonic() - started, 1),
        "all_calls": ledger.calls,
    }
    parent.metrics = {
        **{
            f"{name}/{key}": value
            for name, child in (("baseline", children[0]), ("compiled", last))
            for key, value in child.metrics.items()
        },
        "infrastructure_failures": float(sum(ledger.failures.values())),
    }
    compile_report.draw(parent, task, baseline, better, [(trial.name, rows) for trial, rows in tried])
    finish(parent, *children, settings=settings)
    compile_report.write(parent, baseline, better, ledger)
    return parent


def _tried(task: Task, trial: Trial, ledger: Ledger) -> list[Row]:
    """The rows of a trial; its replies were paid for when the optimizer scored it, but for what is tidied."""
    for predict in predictors(task.component, trial.program).values():
        demos.tidy(task, predict)
    return score(task, trial.program, task.dev, ledger)


def _resources(component: Component, settings: Settings, store: ReplyStore, ledger: Ledger) -> Resources:
    resources = build_resources(settings)
    if component != "program":
        # A component is compiled by what its language model says, before anything else is weighed.
        resources = uncompiled(resources)
    return replace(resources, lms=KeptLMs(settings, store, ledger), state=None)


@contextlib.contextmanager
def _dspy(task: Task, store: ReplyStore) -> Iterator[None]:
    """DSPy's settings for the optimizers' own calls; those of components bring their own adapter."""
    lm = task.desk.resources.lms[ROLES[task.component][0]]
    # A schema holds small models to the fields that an optimizer asks for.
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(), callbacks=[ForgetUnreadable(store)], disable_history=True):
        yield


def _params(
    task: Task,
    optimizer: OptimizerName,
    budget: Budget,
    settings: Settings,
    seed: int,
    limit: int | None,
    estimate: Estimate,
) -> dict[str, Any]:
    lms = task.desk.resources.lms
    return {
        "component": task.component,
        "optimizer": optimizer,
        "budget": budget,
        "lm": " ".join(dict.fromkeys(lms.identity(role) for role in ROLES[task.component])),
        "reflection_lm": lms.identity("reflection"),
        "embedder": load_embedder(settings.embedder).name,
        "data": data_digest(loading.FOLDER, FILES[task.component]),
        "seed": seed,
        "git": git_commit(),
        "limit": limit or 0,
        "train": len(task.train),
        "dev": len(task.dev),
        "test": len(task.test),
        "estimate": str(estimate),
    }


def _card(params: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's parameters a state carries: nothing that differs when the run is repeated."""
    return {name: value for name, value in params.items() if name != "estimate"}


def data_digest(folder: Path, files: Sequence[str]) -> str:
    """Sixteen digits that change with every byte of the labelled cases."""
    digest = hashlib.sha256()
    for name in files:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _role(path: str) -> Role:
    if path.startswith("router."):
        return "router"
    return "judge" if ".judges." in path else "generator"
