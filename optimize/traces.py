"""Traces that were recorded once, and what they would have become with other thresholds: no call is made.

A trace says what was found, how it was judged and what was written. It does not say what a language model
would have written from other passages or for other reasons, nor what a hop that was not run would have
found. Where a decision leads there, the result is unknown, and says why.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optimize import jsonl
from programs import decisions
from programs.errors import AdaptiveRAGError
from programs.strategies import STRATEGY_TABLE
from signatures.records import Answer, HopTrace, Verdict
from signatures.vocabulary import Decision, Status, StopReason

REWRITE_TRIED: tuple[StopReason, ...] = ("no_progress", "rewrite_failed")
AT_THE_BOUND: tuple[StopReason, ...] = ("max_hops", "no_evidence", "retrieval_unavailable")


class TraceError(AdaptiveRAGError):
    """A file holds no trace."""


@dataclass(frozen=True)
class Dials:
    """What is turned.

    Attributes:
        relevance, grounding, utility: Score from which the judge's verdict passes.
        max_hops: Turns of the loop; None leaves those of the trace.
    """

    relevance: float
    grounding: float
    utility: float
    max_hops: int | None = None


@dataclass(frozen=True)
class ReplayedHop:
    """A hop as it would have been: what stayed, the verdicts, how it ended."""

    kept: tuple[str, ...]
    answer: str
    relevance: Verdict | None
    grounding: Verdict | None
    utility: Verdict | None
    decision: Decision

    @property
    def passed(self) -> tuple[bool | None, ...]:
        """Of the three judges; None where one did not run."""
        return _flags(self)


@dataclass(frozen=True)
class Replayed:
    """A request as it would have been.

    Attributes:
        hops: The hops that would have been run.
        best_hop: Number of the hop that would have been returned, 0 for none.
        answer: Its text as the language model wrote it; of a request without retrieval the whole answer.
        status, stop_reason: As in `Answer`.
        lm_calls: Those of the trace, without the ones that would not have been made.
    """

    hops: tuple[ReplayedHop, ...]
    best_hop: int
    answer: str
    status: Status
    stop_reason: StopReason
    lm_calls: int


@dataclass(frozen=True)
class Unknown:
    """The trace does not say; `reason` says what it would take."""

    reason: str


def read_traces(paths: Iterable[Path]) -> list[Answer]:
    """Traces of files and folders.

    Args:
        paths: JSON files as `adaptive-rag ask --json` prints them, JSON Lines of such records (or of
            objects that hold one as `record`), or folders of both.

    Raises:
        TraceError: A file cannot be read or holds something else.
    """
    found = []
    for path in paths:
        files = sorted(f for f in path.rglob("*") if f.suffix in (".json", ".jsonl")) if path.is_dir() else [path]
        for file in files:
            for number, value in enumerate(_values(file), start=1):
                record = value.get("record", value) if isinstance(value, dict) else value
                try:
                    found.append(Answer.model_validate_json(json.dumps(record)))
                except ValidationError as error:
                    first = error.errors()[0]
                    where = ".".join(map(str, first["loc"])) or "record"
                    raise TraceError(f"{file}, record {number} is no trace: {where}: {first['msg']}") from error
    return found


def _values(file: Path) -> list[Any]:
    try:
        text = file.read_bytes()
        if file.suffix != ".jsonl":
            value = json.loads(text)
            return value if isinstance(value, list) else [value]
        found = list(jsonl.lines(file))
        if text.strip() and not found:
            raise ValueError("no line is a JSON object")
        return found
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{file} is no JSON: {error}", hint="adaptive-rag ask --json QUESTION > FILE") from error


def replay(record: Answer, dials: Dials, live: Dials) -> Replayed | Unknown:
    """What a recorded request would have become.

    Time, tokens and calls of the request are taken to last as long as they did.

    Args:
        record: The trace.
        dials: To decide with.
        live: What the trace was recorded with.
    """
    if not record.trace:
        return Replayed((), 0, record.answer, record.status, record.stop_reason, record.usage.lm_calls)
    bound = dials.max_hops or bound_of(record, live)
    calls = record.usage.lm_calls - sum(hop.usage.lm_calls for hop in record.trace)
    hops: list[ReplayedHop] = []
    taken: list[Decision] = []
    stop: StopReason = "max_hops"
    for hop in record.trace:
        judged = _judged(hop, dials, live)
        if isinstance(judged, Unknown):
            return judged
        is_last = hop.hop == len(record.trace)
        stopped = record.stop_reason if is_last else "max_hops"
        end = decisions.ending(
            passed=decisions.all_passed((judged.relevance, judged.grounding, judged.utility)),
            limit=stopped if stopped in ("deadline", "budget") else None,
            blocked=stopped if _blocked(hop, stopped) and hop.kept == judged.kept else None,
            last=hop.hop >= bound,
        )
        tried = hop.decision in decisions.LADDER or (is_last and stopped in REWRITE_TRIED) or hop.retry_calls > 0
        hops.append(judged)
        if end is None:
            if not tried:
                return Unknown("a hop that was never run")
            before = record.trace[: len(hops)]
            if not _same_reasons(hop, judged) or _ways(hops, taken) != _ways(before, taken):
                return Unknown("a rewrite for other reasons")
            decision, stop = hop.decision, stopped
        else:
            decision, stop = end
            calls -= hop.retry_calls
        hops[-1] = dataclasses.replace(judged, decision=decision)
        calls += hop.usage.lm_calls - _calls_of_answer(hop) * (bool(hop.kept) and not judged.kept)
        if decision not in decisions.LADDER:
            break
        taken.append(decision)
    place = decisions.best_of([decisions.rank(h.answer, h.relevance, h.grounding, h.utility) for h in hops])
    best = hops[place]
    searched = not any(hop.outages for hop in record.trace[: len(hops)])
    answer = decisions.tellable(best.answer, best.grounding)
    stop = decisions.final_stop(stop, answered=bool(answer), searched=searched)
    status = decisions.status_of(
        passed=decisions.all_passed((best.relevance, best.grounding, best.utility)),
        answered=bool(answer),
        stop=stop,
        searched=searched,
    )
    return Replayed(tuple(hops), place + 1 if answer else 0, answer, status, stop, max(calls, 0))


def bound_of(record: Answer, live: Dials) -> int:
    """Hops that the recorded request might have taken; a trace does not say, but where it ended tells."""
    ran, last = len(record.trace), record.trace[-1]
    ended = record.stop_reason in AT_THE_BOUND and not last.retry_calls
    if last.decision == "fallback" and ended and not _blocked(last, record.stop_reason):
        return ran
    plan = STRATEGY_TABLE[record.strategy].plan
    usual = live.max_hops or (plan.max_hops if plan is not None else ran)
    return max(usual, ran + (record.stop_reason in REWRITE_TRIED or last.retry_calls > 0))


def differences(record: Answer, replayed: Replayed | Unknown) -> list[str]:
    """What a replay decided differently than the trace; [] when it is the same."""
    if isinstance(replayed, Unknown):
        return [replayed.reason]
    pairs: dict[str, tuple[Any, Any]] = {
        "status": (record.status, replayed.status),
        "stop_reason": (record.stop_reason, replayed.stop_reason),
        "best_hop": (record.best_hop, replayed.best_hop),
        "lm_calls": (record.usage.lm_calls, replayed.lm_calls),
        "hops": (len(record.trace), len(replayed.hops)),
    }
    for hop, own in zip(record.trace, replayed.hops, strict=False):
        pairs[f"hop {hop.hop}"] = ((hop.decision, hop.kept, _flags(hop)), (own.decision, own.kept, own.passed))
    return [f"{name}: {now} instead of {then}" for name, (then, now) in pairs.items() if then != now]


def _judged(hop: HopTrace, dials: Dials, live: Dials) -> ReplayedHop | Unknown:
    """A hop with its passages chosen and its verdicts passed anew."""
    relevance = hop.relevance
    kept, answer, grounding, utility = hop.kept, hop.answer, hop.grounding, hop.utility
    if relevance is not None:
        if relevance.source == "check" and dials.relevance != live.relevance:
            return Unknown("a check in place of the relevance judge, which depends on its threshold")
        ids = [hit.passage.id for hit in hop.hits]
        chosen = decisions.kept(ids, relevance.passage_scores, dials.relevance)
        recorded = decisions.kept(ids, relevance.passage_scores, live.relevance)
        if chosen != recorded:
            if chosen:
                return Unknown("an answer from other passages")
            kept = chosen
            if not chosen:
                answer, grounding, utility = "", None, None
    return ReplayedHop(
        kept,
        answer,
        _again(relevance, dials.relevance),
        _again(grounding, dials.grounding),
        _again(utility, dials.utility),
        hop.decision,
    )


def _again(verdict: Verdict | None, threshold: float) -> Verdict | None:
    if verdict is None:
        return None
    return verdict.model_copy(update={"passed": decisions.reaches(verdict.score, threshold)})


def _blocked(hop: HopTrace, stop: StopReason) -> bool:
    """Whether a hop could not go on: the language model was gone, or there was nothing to judge."""
    return stop == "lm_unavailable" or (stop == "retrieval_unavailable" and hop.relevance is None)


def _flags(hop: HopTrace | ReplayedHop) -> tuple[bool | None, ...]:
    verdicts = (hop.relevance, hop.grounding, hop.utility)
    return tuple(None if verdict is None else verdict.passed for verdict in verdicts)


def _same_reasons(hop: HopTrace, judged: ReplayedHop) -> bool:
    """Whether the rewriter would have been told the same; relevance is only told where nothing stayed."""
    return hop.kept == judged.kept and judged.passed[1:] == _flags(hop)[1:]


def _ways(hops: Sequence[HopTrace | ReplayedHop], taken: Sequence[Decision]) -> tuple[Decision, ...]:
    """What might have been tried after the last of some hops."""
    ranks = [decisions.rank(hop.answer, hop.relevance, hop.grounding, hop.utility) for hop in hops]
    return decisions.actions(
        how=taken[-1] if taken else None,
        progress=decisions.progressed(ranks[:-1], ranks[-1]),
        taken=taken,
        proved=any(hop.kept for hop in hops),
    )


def _calls_of_answer(hop: HopTrace) -> int:
    """Calls for writing and judging an answer that would not have been made where no passage had stayed."""
    verdicts = [v for v in (hop.grounding, hop.utility) if v is not None and not v.cached]
    # An overlapped answer is paid for before its passages are judged.
    written = hop.written_again or not hop.overlapped
    return written + sum(v.source == "lm" or v.error_kind is not None for v in verdicts)
