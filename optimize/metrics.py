"""How good an outcome is: a number in [0, 1] and a sentence that says what was wrong.

Each metric takes the labelled case and the prediction of a student (`optimize.students`). The sentence is
what GEPA reads, so it names what was expected. A reply that cannot be used has its own branch everywhere:
it scores 0, and the sentence says why.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import dspy

from data.schema import GroundingCase, QuestionCase, RelevanceCase, RewriteCase, RouteCase, UtilityCase
from optimize.gold import recall
from programs import evidence
from programs.citing import cite
from programs.strategies import INTENT_STRATEGY, STRATEGY_TABLE
from signatures.records import Answer, Passage

CONFIDENCE_SHARE = 0.2
"""Of the route score: the rest is whether the question goes the right way, which is what a user sees."""
PRICE_PER_CALL = 0.01
"""Taken off a right outcome of the program for each language model call: 10 calls are worth a tenth of it."""
DEPTH = 5
"""Passages that a rewritten query is given credit for."""
_MARK = re.compile(r"[\[［【]\s*\d{1,2}")


def scored(score: float, feedback: str) -> dspy.Prediction:
    """What every metric returns."""
    return dspy.Prediction(score=round(min(max(score, 0.0), 1.0), 4), feedback=feedback)


def unusable(made: dspy.Prediction | None) -> dspy.Prediction | None:
    """The result for a reply that could not be used; None where it could."""
    kind = "none" if made is None else made.get("error_kind")
    return scored(0.0, f"The reply could not be used ({kind}): write every field, and nothing else.") if kind else None


def route(case: RouteCase, made: dspy.Prediction) -> dspy.Prediction:
    """The right way, clarification where it is due, and a confidence that can be believed (Brier, 1950)."""
    if (broken := unusable(made)) is not None:
        return broken
    asked = made.strategy == "clarify_needed"
    right = made.intent == case.intent
    believed = 1.0 - (made.confidence - float(right)) ** 2
    if case.clarify:
        outcome = float(asked)
        said = "It rightly asks back." if asked else "The question lacks its object: strategy must be clarify_needed."
    elif asked:
        outcome = 0.0
        said = f"The question is clear, the intent is {case.intent}: asking back is wrong."
    else:
        outcome = float(right)
        said = "The intent is right." if right else f"The intent is {case.intent}, not {made.intent}."
    if believed < 0.75:
        said += f" The confidence {made.confidence:.2f} misleads."
    return scored((1 - CONFIDENCE_SHARE) * outcome + CONFIDENCE_SHARE * believed, said)


def judge(case: RelevanceCase | GroundingCase | UtilityCase, made: dspy.Prediction) -> dspy.Prediction:
    """Agreement with the label; an UNKNOWN verdict agrees with nothing.

    Balance is a matter of the cases: an optimizer gets as many of each label (`optimize.examples`).
    """
    if (broken := unusable(made)) is not None:
        return broken
    if made.score is None:
        return scored(0.0, "There is no verdict: write 是 or 否.")
    wanted = "是" if case.passed else "否"
    if bool(made.passed) == case.passed:
        return scored(1.0, f"The verdict {wanted} is right.")
    return scored(0.0, f"The verdict must be {wanted} ({case.kind}); the judge gave {made.score:.2f} for 是.")


def rewriter(case: RewriteCase, found: Sequence[str], before: Sequence[str], gold: Sequence[str]) -> dspy.Prediction:
    """Recall of the gold passages with the new query, against the failed one.

    Args:
        case: The case.
        found: Ids that the new query found, best first.
        before: Ids that the failed query found.
        gold: Ids of the gold passages.

    Returns:
        The recall among the first `DEPTH`, halved where the failed query found as much: a query that
        gains nothing has not done its work.
    """
    new, old = recall(found, gold, DEPTH), recall(before, gold, DEPTH)
    if new > old:
        return scored(new, f"The query finds {new:.0%} of the passages, the failed one found {old:.0%}.")
    worse = "no more" if new == old else "fewer"
    return scored(new / 2, f"The query finds {worse} of the passages; words that would find them: {case.reference}")


def generator(case: QuestionCase, answer: str, passages: Sequence[Passage]) -> dspy.Prediction:
    """Gold facts present, nothing beyond the passages, cites, and declines where there is no answer.

    Args:
        case: The case.
        answer: As the language model wrote it, with its marks; "" declines.
        passages: What it was shown.
    """
    declined = not answer.strip() or evidence.is_refusal(answer)
    if not case.answerable:
        said = "It rightly declines." if declined else "The passages hold no answer: answer must be empty."
        return scored(float(declined), said)
    if declined:
        return scored(0.0, f"The passages hold the answer: {case.answer}")
    present = facts_present(case, answer)
    missing = [spellings[0] for spellings, there in zip(case.facts, present, strict=True) if not there]
    held = evidence.support(answer, passages, case.question)
    invented = (*held.missing_numbers, *held.missing_names)
    _, citations = cite(answer, passages)
    cites = bool(_MARK.search(answer)) and bool(citations)
    close = 1.0 if exact_match(answer, case.answer) else f1(answer, case.answer)
    score = 0.6 * sum(present) / len(present) + 0.2 * (not invented) + 0.1 * cites + 0.1 * close
    wrong = []
    if missing:
        wrong.append(f"It lacks {'、'.join(missing)}.")
    if invented:
        # What is invented is no answer, whatever else is right.
        score = min(score, 0.5)
        wrong.append(f"The passages do not hold {'、'.join(invented[:5])}.")
    if not cites:
        wrong.append("It does not cite passages as [1].")
    return scored(score, " ".join(wrong) or "Every fact is there, from the passages, and cited.")


def program(case: QuestionCase | RouteCase, record: Answer) -> dspy.Prediction:
    """The right outcome for the user, minus `PRICE_PER_CALL` for each language model call."""
    right, said = outcome(case, record)
    calls = record.usage.lm_calls
    return scored(right - PRICE_PER_CALL * calls if right else 0.0, f"{said} It took {calls} calls.")


def outcome(case: QuestionCase | RouteCase, record: Answer) -> tuple[float, str]:
    """Share of the outcome that is right, in [0, 1], and what is not."""
    if isinstance(case, RouteCase):
        if case.clarify:
            right = record.status == "clarify"
            return float(right), "It asks back." if right else f"It must ask back, and was {record.status}."
        wanted = INTENT_STRATEGY.get(case.intent, "fallback")
        same = STRATEGY_TABLE[record.strategy].ending == STRATEGY_TABLE[wanted].ending
        return float(same), f"It must end with {wanted}, and ended with {record.strategy}."
    if not case.answerable:
        declined = record.status in ("no_evidence", "refused")
        return float(declined), "It declines." if declined else f"There is no answer, and it was {record.status}."
    if record.status not in ("answered", "best_effort"):
        return 0.0, f"The answer is {case.answer!r}, and it was {record.status}."
    present = facts_present(case, record.answer)
    missing = [spellings[0] for spellings, there in zip(case.facts, present, strict=True) if not there]
    return sum(present) / len(present), f"It lacks {'、'.join(missing)}." if missing else "Every fact is there."


def facts_present(case: QuestionCase, answer: str) -> list[bool]:
    """For each fact, whether one of its spellings stands in an answer; width, case and spaces do not count."""
    text = normalised(evidence.strip_citations(answer))
    return [any(_stands(normalised(spelling), text) for spelling in spellings) for spellings in case.facts]


def _stands(fact: str, text: str) -> bool:
    # "5 天" is no part of "15 天".
    before = r"(?<![\d.])" if fact[:1].isdigit() else ""
    return bool(fact) and re.search(before + re.escape(fact), text) is not None


def f1(answer: str, gold: str) -> float:
    """Overlap of two texts in [0, 1]: harmonic mean of precision and recall of characters and Latin words."""
    own, wanted = _units(answer), _units(gold)
    shared = sum((own & wanted).values())
    return 2 * shared / (sum(own.values()) + sum(wanted.values())) if shared else 0.0


def exact_match(answer: str, gold: str) -> bool:
    """Whether two texts are the same but for width, case, spaces, punctuation and citation marks."""
    return _bare(answer) == _bare(gold)


def normalised(text: str) -> str:
    """NFKC, one case, no spaces."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text).casefold())


def _bare(text: str) -> str:
    return "".join(c for c in normalised(evidence.strip_citations(text)) if c.isalnum())


def _units(text: str) -> Counter[str]:
    folded = unicodedata.normalize("NFKC", evidence.strip_citations(text)).casefold()
    # English words and numbers are units, of Chinese each character is one.
    return Counter(re.findall(r"[a-z]+|\d+(?:\.\d+)?|[^\W\da-z_]", folded))
