"""The bounded loop: retrieve, judge, answer, judge, and finish, rewrite or give up honestly.

    for each hop, at most `max_hops`:
        search the query (the parts of the question side by side where the plan says so)
        relevance: keep the passages that hold what the question needs
        generate from what was kept
        grounding and utility of the answer, side by side
        finish if all three pass, else rewrite the query with the reasons
    the best-judged hop is the result

The loop never raises: what fails ends it with a reason and the best hop so far. Method after
Self-RAG (Asai et al., 2023, arXiv:2310.11511), with prompts instead of trained reflection tokens.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import dspy

from programs import budget, decisions, evidence
from programs.errors import LanguageModelError
from programs.judges import Judges
from programs.language import NAMES, detect_language
from programs.lm import ask
from programs.module import AsyncModule, Resources
from programs.progress import emit
from programs.prompting import render_passages
from programs.retrieval.pipeline import SearchResult
from programs.retrieval.plan import RetrievalPlan, RouteName
from programs.rewriter import Rewriter
from signatures.answering import AnswerFromPassages
from signatures.records import Hit, HopTrace, Passage, Usage, Verdict
from signatures.vocabulary import Decision, StopReason

T = TypeVar("T")


@dataclass
class _Hop:
    """A hop in the making; becomes a `HopTrace`."""

    number: int
    query: str
    parts: tuple[str, ...] = ()
    answer: str = ""
    hits: tuple[Hit, ...] = ()
    kept: tuple[Passage, ...] = ()
    relevance: Verdict | None = None
    grounding: Verdict | None = None
    utility: Verdict | None = None
    decision: Decision = "fallback"
    rewritten: str = ""
    degraded: tuple[str, ...] = ()
    outages: tuple[RouteName, ...] = ()
    reasons: list[str] = field(default_factory=list)
    before: Usage = field(default_factory=lambda: budget.current().usage())

    @property
    def passed(self) -> bool:
        return decisions.all_passed((self.relevance, self.grounding, self.utility))

    @property
    def rank(self) -> decisions.Rank:
        return decisions.rank(self.answer, self.relevance, self.grounding, self.utility)

    def trace(self) -> HopTrace:
        return HopTrace(
            hop=self.number,
            query=self.query,
            parts=self.parts,
            answer=self.answer,
            hits=self.hits,
            kept=tuple(passage.id for passage in self.kept),
            relevance=self.relevance,
            grounding=self.grounding,
            utility=self.utility,
            decision=self.decision,
            rewritten_query=self.rewritten,
            degraded=self.degraded,
            outages=self.outages,
            usage=budget.current().usage(self.before),
        )


class SelfRAG(AsyncModule):
    """See the module's text."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.generate = dspy.Predict(AnswerFromPassages)
        self.judges = Judges(resources)
        self.rewriter = Rewriter(resources)
        self.resources = resources

    async def aforward(self, *, question: str, plan: RetrievalPlan, category: str | None = None) -> dspy.Prediction:
        """Answer a question from the index.

        Args:
            question: A question that needs no history.
            plan: What each hop searches, and how many hops there may be.
            category: Only passages of this category; None for all.

        Returns:
            `answer` ("" when there is none), `passages` it was written from, `passed` (all judges),
            `stop_reason`, `trace` (tuple of `HopTrace`), `best_hop` (0 when no hop has an answer)
            `reasons` why the best hop did not pass, and `searched` (whether every search of every
            hop worked, so that "not found" may be said).
        """
        account = budget.current()
        hops: list[_Hop] = []
        traces: list[HopTrace] = []
        tried: list[str] = []
        proved: dict[str, Hit] = {}
        query = question
        stop: StopReason = "max_hops"
        for number in range(1, plan.max_hops + 1):
            hop = _Hop(number, query)
            hops.append(hop)
            blocked = await self._turn(hop, question, plan, category, proved)
            tried += [query, *hop.parts]
            end = decisions.ending(
                passed=hop.passed, limit=account.exhausted(), blocked=blocked, last=number == plan.max_hops
            )
            if end is not None:
                hop.decision, stop = end
            else:
                hop.rewritten, stop = await self._rewrite(question, tried, hop)
                if hop.rewritten:
                    hop.decision, query = "rewrite", hop.rewritten
                    emit("rewriting", number, query=query)
            traces.append(hop.trace())
            if hop.decision != "rewrite":
                break
        best = hops[decisions.best_of([hop.rank for hop in hops])]
        searched = not any(hop.outages for hop in hops)
        stop = decisions.final_stop(stop, answered=bool(best.answer), searched=searched)
        return dspy.Prediction(
            answer=best.answer,
            passages=best.kept if best.answer else (),
            passed=best.passed,
            stop_reason=stop,
            trace=tuple(traces),
            best_hop=best.number if best.answer else 0,
            reasons=tuple(best.reasons),
            searched=searched,
        )

    async def _turn(
        self, hop: _Hop, question: str, plan: RetrievalPlan, category: str | None, proved: dict[str, Hit]
    ) -> StopReason | None:
        """One hop up to its verdicts; a stop reason where the loop cannot go on."""
        found = await self._search(hop, plan, category)
        hop.degraded, hop.outages = found.degraded, found.outages
        new = [hit for hit in found.hits if hit.passage.id not in proved]
        # Half of the places are for what is new, so that a full first hop does not shut it out.
        new = new[: max(plan.top_k - len(proved), plan.top_k // 2)]
        hop.hits = (*[*proved.values()][: plan.top_k - len(new)], *new)
        emit("found", hop.number, hits=hop.hits)
        if not hop.hits and found.outages:
            hop.reasons.append("检索暂时不可用")
            return "retrieval_unavailable"
        try:
            await self._judge_relevance(hop, question)
            if hop.kept:
                if plan.decompose:
                    # A later hop adds to what earlier ones proved.
                    proved.update({hit.passage.id: hit for hit in hop.hits if hit.passage in hop.kept})
                await self._answer(hop, question)
        except LanguageModelError as error:
            hop.reasons.append(error.message)
            budget.current().note(f"语言模型：{error.message}")
            return limit_of(error) or "lm_unavailable"
        return None

    async def _search(self, hop: _Hop, plan: RetrievalPlan, category: str | None) -> SearchResult:
        degraded: list[str] = []

        async def attempt(wanted: bool, call: Awaitable[T], default: T, name: str) -> T:
            if not wanted:
                call.close()  # type: ignore[attr-defined]  # a coroutine that is not needed
                return default
            try:
                return await call
            except LanguageModelError as error:
                degraded.append(f"{name}: {error.message}")
                return default

        write = self.rewriter
        parts, rewritten, imagined = await asyncio.gather(
            attempt(plan.decompose and hop.number == 1, write.parts(hop.query), [hop.query], "decompose"),
            attempt("rewritten" in plan.routes, write.formal(hop.query), "", "rewritten"),
            attempt("hypothetical" in plan.routes, write.hypothetical(hop.query), "", "hypothetical"),
        )
        hop.parts = tuple(parts) if len(parts) > 1 else ()
        emit("searching", hop.number, queries=tuple(parts))
        found = await self.resources.searcher.search(
            parts, plan, category=category, rewritten=rewritten, hypothetical=imagined
        )
        return SearchResult(found.hits, (*degraded, *found.degraded), found.outages)

    async def _judge_relevance(self, hop: _Hop, question: str) -> None:
        judged = await self.judges.relevance.acall(question=question, passages=hop.hits)
        verdict: Verdict = judged.verdict
        hop.relevance = verdict
        emit("judged", hop.number, verdict=verdict)
        threshold = self.judges.relevance.threshold
        stay = set(decisions.kept([hit.passage.id for hit in hop.hits], verdict.passage_scores, threshold))
        hop.kept = tuple(hit.passage for hit in hop.hits if hit.passage.id in stay)
        if not hop.kept:
            hop.reasons.append(verdict.reason)

    async def _answer(self, hop: _Hop, question: str) -> None:
        hop.answer = await self._generate(question, hop)
        if not hop.answer:
            hop.reasons.append("检索到的资料里没有答案")
        hop.grounding, hop.utility = await self.judges.answer(question, hop.answer, hop.kept)
        for verdict in (hop.grounding, hop.utility):
            emit("judged", hop.number, verdict=verdict)
            if hop.answer and not verdict.passed and verdict.reason:
                hop.reasons.append(verdict.reason)

    async def _generate(self, question: str, hop: _Hop) -> str:
        """The answer, "" where the passages hold none; with fewer passages when they do not fit."""
        everything = hop.kept
        for passages in (everything, everything[: len(everything) // 2]):
            try:
                reply = await ask(
                    self.generate,
                    self.resources.lms["generator"],
                    role="generator",
                    passages=render_passages(passages),
                    question=question,
                    answer_language=NAMES[detect_language(question)],
                )
            except LanguageModelError as error:
                if error.kind != "context_overflow" or passages is not everything or len(everything) < 2:
                    raise
                budget.current().note("资料超出模型的上下文，已去掉排名靠后的段落")
                continue
            hop.kept = passages
            answer = str(reply.answer).strip()
            return "" if evidence.is_refusal(answer) else answer
        raise AssertionError("the second attempt returns or raises")

    async def _rewrite(self, question: str, tried: Sequence[str], hop: _Hop) -> tuple[str, StopReason]:
        """The next query, or "" with the reason why there is none."""
        try:
            reply = await self.rewriter.acall(question=question, tried_queries=tried, reasons=hop.reasons)
        except LanguageModelError as error:
            return "", limit_of(error) or "rewrite_failed"
        return (reply.query, "max_hops") if reply.changed else ("", "no_progress")


def limit_of(error: LanguageModelError) -> StopReason | None:
    """The limit of the request that an error stands for, if it is one."""
    match error.kind:
        case "deadline":
            return "deadline"
        case "budget":
            return "budget"
    return None
