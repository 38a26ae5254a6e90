"""From labelled cases to what DSPy's optimizers work on: one `dspy.Example` a case.

An example holds the inputs of the component's prompt as the program would fill them, and the outputs that
are right. So it can be shown to an optimizer, be embedded, and stand in a prompt as a demonstration.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import dspy

from data import loading
from data.schema import Case, GroundingCase, QuestionCase, RelevanceCase, RewriteCase, RouteCase, Split, UtilityCase
from optimize.gold import GoldPassages
from optimize.recording import passages_of
from programs import evidence
from programs.language import NAMES, detect_language, message
from programs.prompting import render_passages
from programs.strategies import INTENT_STRATEGY
from signatures.records import Passage
from signatures.vocabulary import JUDGES, NO, YES

Component = Literal["router", "relevance", "grounding", "utility", "generator", "rewriter", "program"]
COMPONENTS: tuple[Component, ...] = ("router", *JUDGES, "generator", "rewriter", "program")
SHOWN = 3
"""Passages that the generator is shown: those with the answer, and others that share words."""
CERTAIN = 95
UNCERTAIN = 40
"""Confidence that a demonstration of the router states, in percent."""
C = TypeVar("C", bound=Case)


def load_component(component: Component) -> list[Case]:
    """The labelled cases of a component.

    Raises:
        DataError: A file is wrong.
    """
    loaders: dict[str, Callable[[], Sequence[Case]]] = {
        "router": loading.load_route_cases,
        "relevance": loading.load_relevance_cases,
        "grounding": loading.load_grounding_cases,
        "utility": loading.load_utility_cases,
        "generator": loading.load_question_cases,
        "rewriter": loading.load_rewrite_cases,
    }
    if component == "program":
        # Of the routes those that end without a search; the questions stand for the rest.
        ending = [c for c in loading.load_route_cases() if c.clarify or c.intent in ("CHIT_CHAT", "UNKNOWN")]
        return [*loading.load_question_cases(), *(c for c in ending if not c.history)]
    return list(loaders[component]())


def chosen(cases: Sequence[C], split: Split, limit: int | None, seed: int) -> list[C]:
    """Cases of a split, the strata in turn, so that every beginning is balanced; at most `limit`.

    Judges get as many passes as fails: agreement is balanced accuracy then.
    """
    strata: dict[tuple[Any, ...], list[C]] = defaultdict(list)
    for case in cases:
        if case.split == split:
            strata[_stratum(case)].append(case)
    for number, key in enumerate(sorted(strata, key=repr)):
        random.Random(seed + number).shuffle(strata[key])
    queues = [strata[key] for key in sorted(strata, key=repr)]
    if cases and isinstance(cases[0], RelevanceCase | GroundingCase | UtilityCase):
        fewest = min((len(queue) for queue in queues), default=0)
        queues = [queue[:fewest] for queue in queues]
    mixed = [queue[n] for n in range(max(map(len, queues), default=0)) for queue in queues if n < len(queue)]
    return mixed[:limit]


def _stratum(case: Case) -> tuple[Any, ...]:
    match case:
        case RouteCase():
            return ("route", case.intent, case.clarify)
        case QuestionCase():
            return ("qa", case.answerable, case.intent)
        case RelevanceCase() | GroundingCase() | UtilityCase():
            return ("judge", case.passed)
    return (case.lang,)


def example(case: Case, gold: GoldPassages, *, generating: bool = True) -> dspy.Example:
    """The example of a case.

    Args:
        case: The case.
        gold: Finds passages.
        generating: Whether a labelled question is one for the generator, or one for the whole program.
    """
    inputs, outputs = _fields(case, gold) if generating else ({"question": case.question}, {})  # type: ignore[attr-defined]
    return dspy.Example(id=case.id, **inputs, **outputs).with_inputs("id", *inputs)


def demonstration(case: Case, gold: GoldPassages) -> dspy.Example:
    """The example as it may stand in a prompt: of a relevance case only the passage that is labelled."""
    made = example(case, gold)
    if isinstance(case, RelevanceCase):
        made["passages"] = render_passages([gold.shown(case.passage)])
        made["verdicts"] = f"1{YES if case.passed else NO}"
    return made


def generator_passages(case: QuestionCase, gold: GoldPassages) -> list[Passage]:
    """What the generator is shown for a question, in an order that does not give the answer away."""
    own = list({(p := gold.find(one)).id: p for one in case.gold}.values())
    folder = "code/" if own and own[0].document_id.startswith("code/") else "corpus/"
    others = gold.near(case.question, folder, without={p.id for p in own}, count=max(0, SHOWN - len(own)))
    shown = [*own, *others]
    random.Random(case.id).shuffle(shown)
    return shown


def _fields(case: Case, gold: GoldPassages) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and right outputs of a component's prompt; inputs as the component itself renders them."""
    match case:
        case RouteCase():
            return {"history": case.history, "question": case.question}, _route(case)
        case RelevanceCase():
            shown = {"question": case.question, "passages": render_passages(passages_of(case, gold))}
            return shown, {"verdicts": f"{YES if case.passed else NO}"}
        case GroundingCase():
            shown = {
                "question": case.question,
                "answer": case.answer,
                "passages": render_passages(passages_of(case, gold)),
            }
            return shown, {"verdict": YES if case.passed else NO, "reason": ""}
        case UtilityCase():
            answer = evidence.strip_citations(case.answer)
            return {"question": case.question, "answer": answer}, {
                "verdict": YES if case.passed else NO,
                "reason": "",
            }
        case QuestionCase():
            passages = generator_passages(case, gold)
            shown = {
                "question": case.question,
                "answer_language": NAMES[detect_language(case.question)],
                "passages": render_passages(passages),
            }
            return shown, {"answer": _cited(case, passages, gold)}
        case RewriteCase():
            shown = {
                "question": case.question,
                "tried_queries": f"- {case.failed_query}",
                "reasons": f"- {case.reasons}",
            }
            return shown, {"query": case.reference}
    raise TypeError(type(case).__name__)


def _route(case: RouteCase) -> dict[str, Any]:
    language = detect_language(case.question)
    back = [message("clarify_1", language), message("clarify_2", language)] if case.clarify else []
    return {
        "intent": case.intent,
        "strategy": "clarify_needed" if case.clarify else INTENT_STRATEGY.get(case.intent, "fallback"),
        "confidence": UNCERTAIN if case.clarify else CERTAIN,
        "reasoning": "",
        "clarification_questions": back,
    }


def _cited(case: QuestionCase, passages: Sequence[Passage], gold: GoldPassages) -> str:
    if not case.answerable:
        return ""
    ids = {gold.find(one).id for one in case.gold}
    marks = "".join(f"[{n}]" for n, passage in enumerate(passages, start=1) if passage.id in ids)
    text = case.answer.rstrip()
    end = text[-1:] if text[-1:] in "。.！!？?" else ""
    return f"{text.removesuffix(end)}{marks}{end}"
