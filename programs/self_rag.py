"""The bounded loop: retrieve, judge, answer, judge, and finish, look further or give up honestly.

    for each hop, at most `max_hops`:
        search the query (the parts of the question side by side where the plan says so)
        relevance: keep the passages that hold what the question needs
        generate from them; where the endpoints take two requests at once, beside the relevance judge, and
            again where that answer leans on a passage that did not stay
        grounding and utility of the answer, side by side
        finish if all three pass, else search for what no hop has seen (`programs.next_search`)
    the best-judged hop is the result

The loop never raises: what fails ends it with a reason and the best hop so far. Method after
Self-RAG (Asai et al., 2023, arXiv:2310.11511), with prompts instead of trained reflection tokens.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import dspy

from programs import budget, citing, decisions, evidence
from programs.errors import LanguageModelError
from programs.judges import Judges
from programs.language import NAMES, detect_language
from programs.lm import ask
from programs.lookahead import Lookahead
from programs.module import AsyncModule, Resources
from programs.next_search import NextSearch, Turn, limit_of, ways
from programs.progress import emit
from programs.prompting import render_passages
from programs.retrieval.plan import RetrievalPlan
from programs.rewriter import Rewriter
from signatures.answering import AnswerFromPassages
from signatures.records import Hit, HopTrace, Passage, Usage, Verdict
from signatures.vocabulary import Decision, StopReason


class _Written(NamedTuple):
    """An answer with its marks, and the passages that they number."""

    answer: str
    passages: tuple[Passage, ...]


@dataclass
class _Hop:
    """A hop in the making; becomes a `HopTrace`."""

    number: int
    turn: Turn
    before: Usage
    answer: str = ""
    hits: tuple[Hit, ...] = ()
    kept: tuple[Passage, ...] = ()
    shown: tuple[Passage, ...] = ()
    overlapped: bool = False
    written_again: bool = False
    relevance: Verdict | None = None
    grounding: Verdict | None = None
    utility: Verdict | None = None
    decision: Decision = "fallback"
    rewritten: str = ""
    retry_calls: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return decisions.all_passed((self.relevance, self.grounding, self.utility))

    @property
    def rank(self) -> decisions.Rank:
        return decisions.rank(self.answer, self.relevance, self.grounding, self.utility)

    @property
    def failed(self) -> list[str]:
        """Judges whose language model gave nothing usable."""
        verdicts = (self.relevance, self.grounding, self.utility)
        return [f"{v.judge}: {v.error_kind}" for v in verdicts if v is not None and v.error_kind is not None]

    def trace(self) -> HopTrace:
        return HopTrace(
            hop=self.number,
            query=self.turn.query,
            parts=self.turn.parts,
            answer=self.answer,
            hits=self.hits,
            kept=tuple(passage.id for passage in self.kept),
            shown=tuple(passage.id for passage in self.shown),
            overlapped=self.overlapped,
            written_again=self.written_again,
            relevance=self.relevance,
            grounding=self.grounding,
            utility=self.utility,
            decision=self.decision,
            rewritten_query=self.rewritten,
            retry_calls=self.retry_calls,
            degraded=(*self.turn.found.degraded, *self.failed),
            outages=self.turn.found.outages,
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

    async def aforward(
        self,
        *,
        question: str,
        plan: RetrievalPlan,
        category: str | None = None,
        ahead: Lookahead | None = None,
    ) -> dspy.Prediction:
        """Answer a question from the index.

        Args:
            question: A question that needs no history.
            plan: What each hop searches, and how many hops there may be.
            category: Only passages of this category; None for all.
            ahead: A search for the question that was begun already.

        Returns:
            `answer` ("" when there is none that may be told), `passages` it was written from, `passed` (all judges),
            `stop_reason`, `trace` (tuple of `HopTrace`), `best_hop` (0 when no hop has an answer)
            `reasons` why the best hop did not pass, and `searched` (whether every search of every
            hop worked, so that "not found" may be said).
        """
        account = budget.current()
        hops: list[_Hop] = []
        traces: list[HopTrace] = []
        proved: dict[str, Hit] = {}
        search = NextSearch(self.resources, self.rewriter, question, plan, category)
        stop: StopReason = "max_hops"
        before = account.usage()
        turn: Turn | None = await search.first(ahead)
        while turn is not None:
            hop = _Hop(len(hops) + 1, turn, before)
            blocked = await self._turn(hop, question, plan, proved, hops)
            hops.append(hop)
            turn = None
            last = hop.number == plan.max_hops
            end = decisions.ending(passed=hop.passed, limit=account.exhausted(), blocked=blocked, last=last)
            if end is not None:
                hop.decision, stop = end
            else:
                calls = account.usage().lm_calls
                open_ways = ways([one.rank for one in hops], search, hop.turn.how, proved=bool(proved))
                turn, stop = await search.after(hop.number, hop.reasons, open_ways)
                hop.retry_calls = account.usage().lm_calls - calls
                if turn is not None:
                    assert turn.how is not None
                    hop.decision, hop.rewritten = turn.how, turn.query
            traces.append(hop.trace())
            before = account.usage()
        best = hops[decisions.best_of([hop.rank for hop in hops])]
        searched = not any(hop.turn.found.outages for hop in hops)
        answer = decisions.tellable(best.answer, best.grounding)
        stop = decisions.final_stop(stop, answered=bool(answer), searched=searched)
        return dspy.Prediction(
            answer=answer,
            passages=best.shown if answer else (),
            passed=best.passed,
            stop_reason=stop,
            trace=tuple(traces),
            best_hop=best.number if answer else 0,
            reasons=tuple(best.reasons),
            searched=searched,
        )

    async def _turn(
        self, hop: _Hop, question: str, plan: RetrievalPlan, proved: dict[str, Hit], earlier: Sequence[_Hop]
    ) -> StopReason | None:
        """One hop up to its verdicts; a stop reason where the loop cannot go on."""
        found = hop.turn.found
        hop.hits = found.hits
        if plan.decompose or hop.turn.how in ("decompose", "widen"):
            # What is looked for now adds to what earlier hops proved.
            new = [hit for hit in found.hits if hit.passage.id not in proved]
            # Half of the places are for what is new, so that a full first hop does not shut it out.
            new = new[: max(plan.top_k - len(proved), plan.top_k // 2, 1)]
            hop.hits = (*[*proved.values()][: plan.top_k - len(new)], *new)
        emit("found", hop.number, hits=hop.hits)
        if not hop.hits and found.outages:
            hop.reasons.append("检索暂时不可用")
            return "retrieval_unavailable"
        try:
            if await self._write(hop, question, earlier):
                await self._judge_answer(hop, question, earlier)
            proved.update({hit.passage.id: hit for hit in hop.hits if hit.passage in hop.kept})
        except LanguageModelError as error:
            hop.reasons.append(error.message)
            budget.current().note(f"语言模型：{error.message}")
            return limit_of(error) or "lm_unavailable"
        return None

    async def _write(self, hop: _Hop, question: str, earlier: Sequence[_Hop]) -> bool:
        """Judge the passages and write an answer; whether one was written, from more than earlier hops had."""
        writing: asyncio.Task[_Written] | None = None
        if hop.hits and self._overlaps:
            hop.overlapped = True
            writing = asyncio.create_task(self._generate(question, tuple(hit.passage for hit in hop.hits)))
        try:
            await self._judge_relevance(hop, question, earlier)
            kept = {passage.id for passage in hop.kept}
            if kept and any(kept <= {passage.id for passage in one.shown} for one in earlier):
                hop.reasons.append("没有找到新的相关资料")
            elif kept:
                written = await (writing or self._generate(question, hop.kept))
                if writing is not None and len(kept) < len(hop.hits):
                    counts = self._from_kept(written, hop.kept)
                    hop.written_again = counts is None
                    written = counts or await self._generate(question, hop.kept)
                hop.answer, hop.shown = written
                return True
            return False
        finally:
            if writing is not None and not writing.done():
                writing.cancel()
            elif writing is not None and not writing.cancelled():
                writing.exception()  # looked at, also where nobody needs the answer any more

    @staticmethod
    def _from_kept(written: _Written, kept: Sequence[Passage]) -> _Written | None:
        """An answer that was written from all that was found, as one from the passages that stayed.

        None where it cannot pass for one: a passage that stayed was not read, or one that did not is cited.
        """
        answer, shown = written
        if not set(kept) <= set(shown):
            return None
        places = {place: kept.index(passage) + 1 for place, passage in enumerate(shown, 1) if passage in kept}
        moved = citing.moved(answer, places)
        return None if moved is None else _Written(moved, tuple(kept))

    @property
    def _overlaps(self) -> bool:
        """Whether an answer is written while its passages are judged.

        Where requests wait for each other this would only be later, and from passages that are not relevant.
        """
        lms = self.resources.lms
        return self.resources.settings.overlap and lms.parallel("generator") and lms.parallel("judge")

    async def _judge_relevance(self, hop: _Hop, question: str, earlier: Sequence[_Hop]) -> None:
        known = {
            passage: score
            for one in earlier
            if one.relevance is not None and one.relevance.error_kind is None
            for passage, score in one.relevance.passage_scores.items()
        }
        judged = await self.judges.relevance.acall(question=question, passages=hop.hits, known=known)
        verdict: Verdict = judged.verdict
        hop.relevance = verdict
        emit("judged", hop.number, verdict=verdict)
        threshold = self.judges.relevance.threshold
        stay = set(decisions.kept([hit.passage.id for hit in hop.hits], verdict.passage_scores, threshold))
        hop.kept = tuple(hit.passage for hit in hop.hits if hit.passage.id in stay)
        if not hop.kept:
            hop.reasons.append(verdict.reason)

    async def _judge_answer(self, hop: _Hop, question: str, earlier: Sequence[_Hop]) -> None:
        if not hop.answer:
            hop.reasons.append("检索到的资料里没有答案")
        grounding, utility = await self.judges.answer(question, hop.answer, hop.shown)
        same = [one for one in earlier if one.answer == hop.answer]
        hop.grounding = decisions.stands(grounding, [one.grounding for one in same if one.grounding is not None])
        hop.utility = decisions.stands(utility, [one.utility for one in same if one.utility is not None])
        for verdict in (hop.grounding, hop.utility):
            emit("judged", hop.number, verdict=verdict)
            if hop.answer and not verdict.passed and verdict.reason:
                hop.reasons.append(verdict.reason)

    async def _generate(self, question: str, everything: tuple[Passage, ...]) -> _Written:
        """The answer, "" where the passages hold none; with fewer passages when they do not fit."""
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
            answer = str(reply.answer).strip()
            # A bare "[1]" answers nothing.
            said = evidence.strip_citations(answer).strip()
            return _Written(answer if said and not evidence.is_refusal(answer) else "", passages)
        raise AssertionError("the second attempt returns or raises")
