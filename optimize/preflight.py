"""Everything that can be wrong is found before anything is spent: one reply, then an estimate and a question."""

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from optimize.examples import Component
from optimize.kept_replies import Ledger
from optimize.optimizers import LABELS_ONLY, PACKAGES, REFLECTING, Budget, OptimizerName, estimated_runs
from optimize.students import predictors
from optimize.tasks import Task
from programs.errors import AdaptiveRAGError, MissingPackageError
from programs.prices import Price, shown_money
from programs.settings import Settings

PROBES = 3
"""Cases that the language model may fail on before it counts as unusable."""
REFLECTION_FACTOR = 4
"""Tokens and time of a reflection against a call of the component; its prompts hold several of those."""


class CompileRefused(AdaptiveRAGError):
    """A compile would not work, or nobody agreed to what it costs."""


@dataclass(frozen=True)
class Estimate:
    """What a compile will cost, roughly and at most: replies that are kept already cost nothing.

    Attributes:
        runs: Of the component, scoring included.
        calls: Of language models, reflections included.
        reflections: Of these, by the optimizer itself.
        prompt_tokens, completion_tokens: Of all calls.
        minutes: One call after the other.
        money: By the prices of the endpoints that are asked; None where one has none.
        currency: Of the prices.
    """

    runs: int
    calls: int
    reflections: int
    prompt_tokens: int
    completion_tokens: int
    minutes: float
    money: float | None
    currency: str

    def __str__(self) -> str:
        money = "no price is set" if self.money is None else shown_money(self.money, self.currency)
        return (
            f"about {self.calls} calls ({self.runs} runs, {self.reflections} reflections), "
            f"{self.prompt_tokens + self.completion_tokens} tokens, {self.minutes:.0f} minutes, money: {money}"
        )


def check_possible(component: Component, optimizer: OptimizerName) -> None:
    """What needs no data to be seen.

    Raises:
        CompileRefused, MissingPackageError: The optimizer cannot do this.
    """
    for package in PACKAGES.get(optimizer, ()):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"The package {package!r} is needed for {optimizer} and is not installed.",
                hint="Install what pyproject.toml lists: pip install -e .",
            )
    if optimizer in LABELS_ONLY and component == "program":
        raise CompileRefused(
            f"{optimizer} puts labelled cases into one prompt; the whole program has several.",
            hint="Take bootstrap, mipro, gepa or simba, or compile a component.",
        )


def preflight(task: Task, optimizer: OptimizerName, size: Budget, ledger: Ledger, settings: Settings) -> Estimate:
    """Check data, metric and language model, and estimate the cost from one reply.

    Args:
        task: What is to be compiled; its data was read through the schema.
        optimizer, size: With what.
        ledger: Of the language models.
        settings: Name the currency.

    Raises:
        CompileRefused: It would not work; the message says why.
    """
    for split, examples in (("train", task.train), ("dev", task.dev), ("test", task.test)):
        if len(examples) < 2:
            raise CompileRefused(f"{task.component} has {len(examples)} cases in {split}; at least 2 are needed.")
    _check_metric(task)
    student = task.student()
    before = (ledger.calls, ledger.prompt_tokens, ledger.completion_tokens, ledger.seconds)
    spent = ledger.cost
    tried = 0
    for one in task.train[:PROBES]:
        tried += 1
        if not (made := student(**one.inputs())).get("error_kind") and ledger.calls > before[0]:
            break
    else:
        kind = made.get("error_kind") or "it was never asked"
        raise CompileRefused(
            f"The language model gave no usable reply to {tried} cases ({kind}).",
            hint="adaptive-rag doctor checks what it can do.",
        )
    after = (ledger.calls, ledger.prompt_tokens, ledger.completion_tokens, ledger.seconds)
    calls, prompt, completion, seconds = ((b - a) / tried for a, b in zip(before, after, strict=True))
    count = len(predictors(task.component, student))
    runs, reflections = estimated_runs(optimizer, size, len(task.train), len(task.dev), count)
    if optimizer not in REFLECTING:
        reflections = 0
    runs += 2 * (len(task.dev) + len(task.test))
    weighed = runs + REFLECTION_FACTOR * reflections / max(calls, 1)
    tokens = round(prompt * weighed), round(completion * weighed)
    paid = None if spent is None or ledger.cost is None else (ledger.cost - spent) / tried * runs
    reflecting = task.desk.resources.lms.endpoints("reflection")[0].price
    extra = {"prompt": prompt * (weighed - runs), "completion": completion * (weighed - runs)}
    return Estimate(
        runs=runs,
        calls=math.ceil(calls * runs) + reflections,
        reflections=reflections,
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        minutes=seconds * weighed / 60,
        money=_money(paid, reflecting, extra) if reflections else paid,
        currency=settings.currency,
    )


def _money(paid: float | None, reflecting: Price | None, tokens: dict[str, float]) -> float | None:
    """What the runs cost and the reflections, each at the price of its own language model."""
    return None if paid is None or reflecting is None else paid + reflecting.amount(**tokens)


def agree(estimate: Estimate, *, yes: bool, read: Callable[[str], str] = input) -> None:
    """Go on only if somebody wants to.

    Args:
        estimate: What it will cost.
        yes: Whether that was said on the command line.
        read: Asks a question on the terminal.

    Raises:
        CompileRefused: Nobody agreed.
    """
    sys.stdout.write(f"{estimate}\n")
    sys.stdout.flush()
    if yes:
        return
    if not sys.stdin.isatty():
        raise CompileRefused("There is no terminal to ask on.", hint="Say --yes to spend this.")
    if read("Go on? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise CompileRefused("Nothing was compiled.")


def _check_metric(task: Task) -> None:
    """The right outputs of some labelled cases must score well, or nothing that follows means anything."""
    if task.component == "program":
        return  # a right outcome is a whole record, which only the program makes
    if not task.labelled:
        raise CompileRefused(f"No labelled case of {task.component} satisfies its own metric.")
    for demo in task.labelled[:PROBES]:
        value = task.demo_score(task.desk.cases[demo.id], demo).score
        if not math.isfinite(value) or not 0 <= value <= 1:
            raise CompileRefused(f"The metric gives {value} for the labelled case {demo.id}.")
