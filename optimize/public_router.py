"""The router on public questions, without a call to a language model.

What runs is the router itself with a budget of no calls: where it would ask a language model, it does what it
does when none can be had.
"""

from collections import Counter
from collections.abc import Sequence

from data.schema import RouteCase
from optimize.public_report import Cell, Line, Report
from optimize.public_rows import ClarifyRow, PublicRow, RouteRow, row_groups
from optimize.router_fit import measure_router
from optimize.statistics import area_interval, balanced_interval, wilson
from programs import background, budget
from programs.module import Resources
from programs.retrieval.base import Embedder
from programs.router import Router
from signatures.records import RouteDecision
from signatures.vocabulary import INTENTS


def decide(resources: Resources, rows: Sequence[PublicRow]) -> list[RouteDecision]:
    """The router's decisions on questions without earlier turns; `error_kind` marks those left to a language model."""
    router = Router(resources)
    decisions = []
    for row in rows:
        with budget.spending(budget.Budget(max_lm_calls=0)):
            decisions.append(background.run(router.acall(question=row.question)).decision)
    return decisions


def measure_route(rows: Sequence[RouteRow], resources: Resources, embedder: Embedder) -> Report:
    """Whether the intents are right: of the classifier alone, and of the router as it decides without a call."""
    report = Report("route", len(rows))
    count = len(rows)
    if resources.classifier is None:
        report.notes.append("there is no classifier for this embedder: every question is left to the language model")
    elif rows:
        figures = measure_router(resources.classifier.state, [_case(row) for row in rows], embedder)
        report.lines.append(Line("classifier alone", count, {"accuracy": figures["accuracy"]}))
        sure = {"accuracy": figures["taken_accuracy"], "share": figures["taken"]}
        report.lines.append(Line("classifier where it is sure", round(figures["taken"][0] * count), sure))
    decisions = decide(resources, rows)
    right = [made.intent == row.intent for made, row in zip(decisions, rows, strict=True)]
    decided = [made.error_kind is None for made in decisions]
    hits = sum(r for r, d in zip(right, decided, strict=True) if d)
    shares = {"accuracy": wilson(hits, sum(decided)), "share": wilson(sum(decided), count)}
    report.lines.append(Line("router, decided without a call", sum(decided), shares))
    report.lines.append(Line("router, all, with no call to be had", count, {"accuracy": wilson(sum(right), count)}))
    asked = sum(made.strategy == "clarify_needed" for made in decisions)
    report.notes.append(f"asked back instead of going on with the intent: {asked} of {count}")
    report.tables = {"by intent": _by_intent(rows, decisions), "label \\ said": _confusion(rows, decisions)}
    report.tables["by source"] = _shares([row.source for row in rows], right)
    for row, made in zip(rows, decisions, strict=True):
        said = {"said": made.intent, "confidence": round(made.confidence, 4), "strategy": made.strategy}
        report.cases.append({"id": row.id, "expected": row.intent, **said, "decided": made.error_kind is None})
    return report


def measure_clarify(rows: Sequence[ClarifyRow], resources: Resources, embedder: Embedder) -> Report:
    """Whether the router asks back where it must, and only there."""
    report = Report("clarify", len(rows))
    due, groups = [bool(row.label) for row in rows], row_groups(rows)
    decisions = decide(resources, rows)
    asked = [made.strategy == "clarify_needed" for made in decisions]
    found = sum(a and d for a, d in zip(asked, due, strict=True))
    right = [a == d for a, d in zip(asked, due, strict=True)]
    figures = {
        "recall": wilson(found, sum(due)),
        "precision": wilson(found, sum(asked)),
        "in vain": wilson(sum(asked) - found, len(due) - sum(due)),
        "balanced": balanced_interval(right, due, groups),
    }
    report.lines.append(Line("router without a call", len(rows), figures))
    chances = [0.0] * len(rows)
    if resources.classifier is not None and rows:
        opinions = [
            resources.classifier.classify(row.question, embedder.encode_query([row.question])[0]) for row in rows
        ]
        chances = [opinion.clarify for opinion in opinions]
        line = Line("classifier's own probability", len(rows), {"AUC": area_interval(chances, due, groups)})
        report.lines.append(line)
    left = sum(made.error_kind is not None for made in decisions)
    if left:
        report.notes.append(f"left to the language model, and so not asked back here: {left}")
    earlier = sum(bool(row.history) for row in rows)
    if earlier:
        report.notes.append(
            f"{earlier} rows have earlier turns; the program resolves such a question with a language model first, "
            "here its last turn is judged as it stands"
        )
    report.tables["by source"] = _shares([row.source for row in rows], right)
    for row, made, chance in zip(rows, decisions, chances, strict=True):
        said = {"said": made.strategy == "clarify_needed", "score": round(chance, 4), "strategy": made.strategy}
        report.cases.append({"id": row.id, "expected": bool(row.label), **said})
    return report


def _case(row: RouteRow) -> RouteCase:
    return RouteCase(
        id=row.id,
        group=row.id,
        split="test",
        kind=row.source,
        origin=row.source,
        lang=row.lang,
        history="",
        question=row.question,
        intent=row.intent,
        clarify=False,
    )


def _by_intent(rows: Sequence[RouteRow], decisions: Sequence[RouteDecision]) -> dict[str, dict[str, Cell]]:
    labelled, said = Counter(row.intent for row in rows), Counter(made.intent for made in decisions)
    asked = Counter(row.intent for row, made in zip(rows, decisions, strict=True) if made.strategy == "clarify_needed")
    both = Counter(row.intent for row, made in zip(rows, decisions, strict=True) if row.intent == made.intent)
    found: dict[str, dict[str, Cell]] = {}
    for intent in INTENTS:
        recall, precision = wilson(both[intent], labelled[intent]), wilson(both[intent], said[intent])
        found[intent] = {"rows": labelled[intent], "recall": recall, "said": said[intent], "precision": precision}
        found[intent]["asked back"] = asked[intent]
    return found


def _confusion(rows: Sequence[RouteRow], decisions: Sequence[RouteDecision]) -> dict[str, dict[str, Cell]]:
    pairs = Counter((row.intent, made.intent) for row, made in zip(rows, decisions, strict=True))
    return {label: {said: pairs[label, said] for said in INTENTS} for label in INTENTS}


def _shares(sources: Sequence[str], right: Sequence[bool]) -> dict[str, dict[str, Cell]]:
    total, hits = Counter(sources), Counter(s for s, ok in zip(sources, right, strict=True) if ok)
    return {source: {"rows": n, "accuracy": hits[source] / n} for source, n in sorted(total.items())}
