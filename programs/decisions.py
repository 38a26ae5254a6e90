"""The loop's rules, as functions of what was seen: which passages stay, how a hop ends, which hop is best.

`self_rag` decides with them while a question is answered; `optimize.replay` decides with them again, from
recorded traces, for other thresholds. No calls, no clock, nothing kept.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from signatures.records import Verdict
from signatures.vocabulary import Decision, Status, StopReason

Rank = tuple[int, float, float, float]
LADDER: tuple[Decision, ...] = ("rewrite", "decompose", "widen")
"""What is tried after a hop that did not pass: other words, the parts of the question, other routes."""
FLAT = 0.05
"""Sum of the three scores that a hop has to gain on the best before it to count as nearer to an answer."""
NOTHING_CAN_BE_SAID: tuple[StopReason, ...] = ("retrieval_unavailable", "lm_unavailable", "deadline", "budget")


def reaches(score: float | None, threshold: float) -> bool:
    """Whether a verdict passes; UNKNOWN never does, nor does 0, with which a rule says no, whatever the threshold."""
    return score is not None and score >= threshold and score > 0


def kept(found: Iterable[str], scores: Mapping[str, float | None], threshold: float) -> tuple[str, ...]:
    """Ids of the passages that stay; one that could not be judged is not thrown away.

    Args:
        found: Ids of what was found, best first.
        scores: Relevance by id.
        threshold: Of relevance.
    """
    return tuple(one for one in found if (score := scores.get(one)) is None or score >= threshold)


def all_passed(verdicts: Iterable[Verdict | None]) -> bool:
    """Whether a hop may finish: every judge ran and passed."""
    return all(verdict is not None and verdict.passed for verdict in verdicts)


def tellable(answer: str, grounding: Verdict | None) -> str:
    """What may be told, marked as unverified if need be: "" where the answer holds a number that nobody gave.

    An answer that a judge doubts may be right; one with an invented number is not, and a reader takes numbers
    for facts whatever stands below them.
    """
    invented = grounding is not None and grounding.source == "check" and grounding.error_kind is None
    return "" if invented else answer


def rank(answer: str, relevance: Verdict | None, grounding: Verdict | None, utility: Verdict | None) -> Rank:
    """Better hops are greater: an answer that may be told, then judges passed, then the scores; UNKNOWN is 0."""
    verdicts = (grounding, utility, relevance)
    first, second, third = (verdict.score or 0.0 if verdict is not None else 0.0 for verdict in verdicts)
    passed = sum(verdict is not None and verdict.passed for verdict in verdicts)
    return 4 * bool(tellable(answer, grounding)) + passed, first, second, third


def best_of(ranks: Sequence[Rank]) -> int:
    """Place of the best hop, from 0; of equal ones the first."""
    return max(range(len(ranks)), key=lambda place: ranks[place])


def progressed(earlier: Sequence[Rank], now: Rank) -> bool:
    """Whether a hop came nearer to an answer than every one before it; the first always did."""
    if not earlier:
        return True
    best = max(earlier)
    return now[0] > best[0] or (now[0] == best[0] and sum(now[1:]) > sum(best[1:]) + FLAT)


def actions(*, how: Decision | None, progress: bool, taken: Collection[Decision], proved: bool) -> tuple[Decision, ...]:
    """What may be tried next, in this order.

    After a hop that came no nearer, only the ways behind the one that led to it: the others had their turn.
    After progress all of them again, also one that found nothing new before, as the reasons to look further changed.

    Args:
        how: What led to the hop that has just failed, None for the first.
        progress: Whether that hop came nearer to an answer.
        taken: What led to earlier hops; a question is split once.
        proved: Some hop kept a passage. Where none did, the parts of the question are as unknown as the whole.
    """
    start = 0 if how is None or progress else LADDER.index(how) + 1
    left = LADDER[start:]
    return tuple(one for one in left if one != "decompose" or (proved and one not in taken))


def stands(now: Verdict, earlier: Iterable[Verdict]) -> Verdict:
    """The verdict on an answer that was judged before: a stand-in does not overrule a language model's no.

    Args:
        now: The verdict of this hop.
        earlier: Verdicts of the same judge on the same answer.
    """
    if now.error_kind is None:
        return now
    return next((one for one in earlier if one.source == "lm" and not one.passed and not one.unknown), now)


def ending(
    *, passed: bool, limit: StopReason | None, blocked: StopReason | None, last: bool
) -> tuple[Decision, StopReason] | None:
    """How a hop ends before a rewrite is asked for; None where one is to be asked for.

    Args:
        passed: All judges passed.
        limit: Limit of the request that is used up. It counts before what it caused: a store that had no
            time left is no outage.
        blocked: Why the loop cannot go on.
        last: There may be no hop after it.
    """
    if passed:
        return "finish", "judges_passed"
    if limit is not None or blocked is not None:
        return "fallback", limit or blocked or "max_hops"
    return ("fallback", "max_hops") if last else None


def final_stop(stop: StopReason, *, answered: bool, searched: bool) -> StopReason:
    """The stop reason of the request: "used up all hops" says too little where there is no answer.

    Args:
        stop: Why the loop ended.
        answered: Some hop has an answer.
        searched: Every search of every hop worked.
    """
    if answered or stop not in ("max_hops", "no_progress"):
        return stop
    if not searched:
        return "retrieval_unavailable"
    return "no_evidence" if stop == "max_hops" else stop


def status_of(*, passed: bool, answered: bool, stop: StopReason, searched: bool) -> Status:
    """What kind of answer the loop's result is.

    Args:
        passed: The best hop passed all judges.
        answered: The best hop has an answer.
        stop: The final stop reason.
        searched: Every search of every hop worked, so that "not found" may be said.
    """
    if answered:
        return "answered" if passed else "best_effort"
    return "unavailable" if stop in NOTHING_CAN_BE_SAID or not searched else "no_evidence"
