"""Every part that can fail, in every way it fails, in every hop: the outcome of each cell stands in a table.

Rows are what a language model is asked for, columns how it fails. A cell says with which status and stop
reason the request ends; for all of them the record is whole, in time, without a verdict that nobody gave, and
nothing bad is remembered: the same question to the same program is answered well once the fault is over.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from loop_scripts import NO, QUESTION, hop_plan, judged
from memory_store import MemoryDenseStore, MemoryTextStore
from scripted_lm import Call, Reply, closed_port, helpful

from programs.errors import StoreLocked, StoreMismatch
from signatures.records import Answer, Verdict

DEADLINE = 6.0
"""Of requests whose language model hangs: the endpoint's own time-out is shorter, so that it ends them."""
TIMEOUT = 0.4
GOOD_STATUS = ("answered", "judges_passed")
FAULTS: dict[str, Reply] = {
    "hangs up": Reply('{"answer": "本店支持七天"}', cut=True),
    "hangs": Reply(delay=60),
    "429": Reply(status=429, headers={"retry-after": "0"}),
    "500": Reply(status=500),
    "cut": Reply('{"answer": "本店支持', finish="length"),
    "empty": Reply(""),
    "garbage": Reply("}{ ok! [是 是 1.0"),
    "wrong language": Reply("Desolé, je ne réponds qu'en français : oui, c'est pertinent."),
    "thinking": Reply('<think>{"verdict": "是", "reason": "x", "verdicts": "1是 2是 3是", "answer": "三年"'),
}
"""How a reply fails. An endpoint that refuses connections does so for a whole role: see `REFUSED`."""


@dataclass(frozen=True)
class Row:
    """One thing that a language model is asked for.

    Attributes:
        signature: Which.
        outcome: Status and stop reason when it fails from the first hop on.
        second: The same when it works in the first hop, whose answer did not pass, and fails from the second
            hop on; None where it is asked once in a request.
        well: The same when nothing fails.
        asked: What brings the program to ask for it.
        history: Earlier turns.
        question: The question.
        replies: What else the model says.
        unreadable: How it ends where the model can be reached and its replies cannot be read; None for the same.
    """

    signature: str
    outcome: tuple[str, str]
    second: tuple[str, str] | None = None
    well: tuple[str, str] = GOOD_STATUS
    asked: dict[str, Any] = field(default_factory=dict)
    history: str = ""
    question: str = QUESTION
    replies: dict[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, str] | None = None


UNSURE = {
    "intent": "FACT_LOOKUP",
    "strategy": "clarify_needed",
    "confidence": 20,
    "reasoning": "缺少对象",
    "clarification_questions": [],
}
SPLIT = {"parts": ["退货的运费谁付", "发票怎么申请"]}
ROWS = (
    # A router without an opinion takes the safe strategy, which answers.
    Row("route", GOOD_STATUS),
    # The program has two questions of its own.
    Row("ask_back", ("clarify", "no_retrieval"), well=("clarify", "no_retrieval"), replies={"route": UNSURE}),
    # A greeting of its own.
    Row("reply", ("answered", "no_retrieval"), well=("answered", "no_retrieval"), asked={"strategy": "direct_reply"}),
    # Nothing was written, so nothing can be said; after a first hop, its answer is there.
    Row("generate", ("unavailable", "lm_unavailable"), ("best_effort", "lm_unavailable")),
    # Passages are kept unjudged, and an answer from them alone is never called checked. In a second hop it stands
    # beside passages that were judged in the first.
    Row("relevance", ("best_effort", "max_hops"), GOOD_STATUS),
    # The words of the answer stand in the passages: the check without a language model says so, and that it was one.
    Row("grounding", GOOD_STATUS, GOOD_STATUS),
    # Whether a text answers a question cannot be seen from its words.
    Row("utility", ("best_effort", "max_hops"), ("best_effort", "max_hops")),
    # The first hop did not pass, and there is no other query; a model that is there leaves the other ways.
    Row(
        "rewrite",
        ("best_effort", "rewrite_failed"),
        ("best_effort", "rewrite_failed"),
        unreadable=("best_effort", "max_hops"),
        well=("best_effort", "max_hops"),
        replies={"grounding": NO},
    ),
    # The routes and parts that need it are left out, and said to be.
    Row("paraphrase", GOOD_STATUS, asked={"routes": ["dense", "text", "rewritten"]}),
    Row("imagine", GOOD_STATUS, asked={"routes": ["dense", "text", "hypothetical"]}),
    Row("decompose", GOOD_STATUS, asked={"decompose": True}, replies={"decompose": SPLIT}),
    # The question is searched as it was said.
    Row("resolve", GOOD_STATUS, history="用户：你好\n助手：您好"),
)
KINDS = {
    "hangs up": "connection",
    "hangs": "timeout",
    "429": "rate_limit",
    "500": "server",
    "cut": "truncated",
    "empty": "empty",
    "garbage": "parse",
    "wrong language": "parse",
    "thinking": "empty",
}
"""Failure kind of each column, as verdicts and decisions carry it."""
UNREADABLE = ("truncated", "empty", "parse")
"""Failure kinds of a model that can be reached."""
REPEATED = ("500", "cut", "empty", "garbage")
"""Columns after which the question is asked again: what was bad must not have been kept."""
REFUSED: dict[str, tuple[str, str]] = {
    "router_lm": GOOD_STATUS,  # the safe strategy
    "generator_lm": ("unavailable", "lm_unavailable"),
    "judge_lm": ("best_effort", "max_hops"),  # whether the answer is useful, nobody can say
}
"""How a request ends when the endpoint of a role refuses every connection."""
CELLS = [
    pytest.param(row, fault, hop, id=f"{row.signature}-{fault}-hop{hop}")
    for row in ROWS
    for fault in KINDS
    for hop in (1, 2)
    if hop == 1 or row.second is not None
]


class Scripted:
    """A model that fails at one signature while `broken`, from the given hop on."""

    def __init__(self, row: Row, fault: str, hop: int) -> None:
        self.broken = True
        self.failed = 0
        self._row, self._fault, self._hop = row, fault, hop
        self._rewritten = 0

    def __call__(self, call: Call) -> Any:
        replies: dict[str, Any] = dict(self._row.replies)
        hop = 1 + self._rewritten
        self._rewritten += call.signature == "rewrite"
        if self._hop == 2 and hop == 1:
            replies["grounding"] = NO  # so that there is a second hop
        elif self._hop == 2:
            if "grounding" in replies:
                replies["grounding"] = judged(0.4)  # nearer, so that other words are worth while again
            replies["generate"] = {"answer": "七天无理由退货，运费由买家承担[1]。"}  # not the one that was judged
        if self.broken and call.signature == self._row.signature and hop >= self._hop:
            self.failed += 1
            return FAULTS[self._fault]
        return helpful(**replies)(call)


def options_of(row: Row, hop: int) -> dict[str, Any]:
    plan = {key: value for key, value in row.asked.items() if key != "strategy"}
    hops = 3 if row.signature == "rewrite" and hop == 2 else 2
    options: dict[str, Any] = {"history": row.history, "plan": hop_plan(hops, **plan)}
    if row.signature not in ("route", "ask_back"):
        options["strategy"] = row.asked.get("strategy", "fast_retrieval")
    return options


def whole(record: Answer) -> None:
    """What holds whatever fails: a whole record, and no verdict that nobody gave."""
    assert Answer.model_validate_json(record.model_dump_json()) == record
    assert record.answer
    assert "<think>" not in record.answer
    for hop in record.trace:
        for verdict in (hop.relevance, hop.grounding, hop.utility):
            if verdict is not None and verdict.error_kind is not None:
                assert verdict.source == "check" or verdict.unknown, "a failed call is no opinion of a model"
    if record.trace and record.status == "answered":
        best = record.trace[record.best_hop - 1]
        checked = (best.relevance, best.grounding, best.utility)
        assert all(isinstance(verdict, Verdict) and verdict.passed for verdict in checked)
        assert best.decision == "finish"
    elif record.trace:
        assert record.stop_reason != "judges_passed"


@pytest.mark.parametrize(("row", "fault", "hop"), CELLS)
def test_a_language_model_that_fails(make_rag: Any, row: Row, fault: str, hop: int) -> None:
    script = Scripted(row, fault, hop)
    options = options_of(row, hop)
    line = f"?timeout={TIMEOUT}" if fault == "hangs" else ""
    bench = make_rag(script, endless=True, deadline=DEADLINE, options=line)
    started = time.monotonic()
    record = bench.ask(row.question, **options)
    assert time.monotonic() - started < DEADLINE + 1
    assert script.failed, "the fault was met"
    whole(record)
    outcome = row.outcome if hop == 1 else row.second
    if row.unreadable is not None and KINDS[fault] in UNREADABLE:
        outcome = row.unreadable
    assert (record.status, record.stop_reason) == outcome
    named(record, row, fault)
    if hop == 1 and fault in REPEATED:
        script.broken = False
        again = bench.ask(row.question, **options)
        whole(again)
        assert (again.status, again.stop_reason) == row.well


@pytest.mark.parametrize("role", REFUSED)
def test_an_endpoint_that_refuses_connections(make_rag: Any, role: str) -> None:
    with closed_port() as url:
        record = make_rag(None, endless=True, deadline=DEADLINE, **{role: f"x@{url}"}).ask(QUESTION)
    whole(record)
    assert (record.status, record.stop_reason) == REFUSED[role]
    assert "HTTP" not in record.answer


def named(record: Answer, row: Row, fault: str) -> None:
    """The fault can be seen where a user or a program looks for it."""
    kind = KINDS[fault]
    match row.signature:
        case "relevance" | "grounding" | "utility":
            verdicts = [getattr(hop, row.signature) for hop in record.trace]
            assert kind in [verdict.error_kind for verdict in verdicts if verdict is not None]
        case "route":
            assert (record.decision.error_kind, record.decision.confidence) == (kind, 0.0)
        case "paraphrase" | "imagine" | "decompose" | "resolve" | "generate" | "reply":
            assert record.degraded
        case "ask_back":
            assert len(record.decision.clarification_questions) == 2


# -- everything at once ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*FAULTS])
def test_a_model_that_fails_at_everything_ends_in_time_and_says_nothing_about_the_question(
    make_rag: Any, fault: str
) -> None:
    bench = make_rag(lambda _: FAULTS[fault], deadline=1.0)
    started = time.monotonic()
    record = bench.ask(QUESTION)
    assert time.monotonic() - started < 2.0
    whole(record)
    assert record.status == "unavailable"
    assert record.stop_reason == ("deadline" if fault == "hangs" else "lm_unavailable")
    assert record.degraded


# -- stores ----------------------------------------------------------------------------------

STORE_ERRORS: dict[str, Any] = {
    "locked": StoreLocked("held by process 7", store="store"),
    "wrong schema": StoreMismatch("made with another embedder", store="store"),
}
STORE_FAULTS = ("down", "slow", "locked", "wrong schema")
STORE_TABLE: dict[tuple[str, bool], tuple[str, str]] = {
    # (broken stores, whether the other one finds something)
    ("dense", True): GOOD_STATUS,
    ("text", True): GOOD_STATUS,
    ("both", True): ("unavailable", "retrieval_unavailable"),
    ("dense", False): ("unavailable", "retrieval_unavailable"),
    ("text", False): ("unavailable", "retrieval_unavailable"),
}
"""One store answers for both; "not found" is only said when everything was searched."""


def broken(store: Any, fault: str) -> Any:
    """The store, failing at every search."""
    if fault == "down":
        store.down = True
    elif fault == "slow":
        store.hangs = 60.0
    else:
        store.search = _raising(STORE_ERRORS[fault])
    return store


def _raising(error: Exception) -> Any:
    def search(*_: Any, **__: Any) -> Any:
        raise error

    return search


@pytest.mark.parametrize("fault", STORE_FAULTS)
@pytest.mark.parametrize(("which", "found"), STORE_TABLE)
def test_a_store_that_fails(make_rag: Any, embedder: Any, which: str, found: bool, fault: str) -> None:
    dense, text = MemoryDenseStore(embedder.dimension), MemoryTextStore()
    bench = make_rag(
        None if found else helpful(relevance=lambda call: Reply(_all_no(call), probability=0.02)),
        dense=dense,
        text=text,
        deadline=DEADLINE,
    )
    for name, store in (("dense", dense), ("text", text)):
        if which in (name, "both"):
            broken(store, fault)
    started = time.monotonic()
    record = bench.ask(QUESTION, strategy="fast_retrieval", plan=hop_plan(1, route_timeout=0.1))
    assert time.monotonic() - started < DEADLINE + 1
    whole(record)
    assert (record.status, record.stop_reason) == STORE_TABLE[which, found]
    lines = [text for text in record.degraded if text.startswith(("dense: ", "text: "))]
    assert {line.partition(":")[0] for line in lines} == ({"dense", "text"} if which == "both" else {which})


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_stores_that_fail_from_the_second_hop_on_leave_the_first_answer(
    make_rag: Any, embedder: Any, fault: str
) -> None:
    dense, text = MemoryDenseStore(embedder.dimension), MemoryTextStore()

    def then_broken(_: Call) -> dict[str, str]:
        for store in (dense, text):
            broken(store, fault)
        return {"query": "退货 规定"}

    bench = make_rag(helpful(grounding=NO, rewrite=then_broken), dense=dense, text=text, deadline=DEADLINE)
    record = bench.ask(QUESTION, plan=hop_plan(3, route_timeout=0.1))
    whole(record)
    assert (record.status, record.stop_reason, record.best_hop) == ("best_effort", "retrieval_unavailable", 1)


def _all_no(call: Call) -> str:
    verdicts = " ".join(f"{n}否" for n in range(1, call.passage_count + 1))
    return json.dumps({"verdicts": verdicts}, ensure_ascii=False)
