"""What a hop searches: the question at first, and what is left to try once a hop did not pass.

    rewrite     other words for the question, from the reasons why the hop failed
    decompose   the parts of the question, beside what was proved so far
    widen       more routes, deeper, among what no hop has seen

A way counts only if its search finds a passage that no hop has seen: the same passages would be written from
and judged in vain. Where a route of that search failed, the hop follows all the same, and says that not everything
was searched. A way whose reply cannot be read gives way to the next one. Where no way is left, the loop ends
(`rewrite_failed` where such a reply was among them, else `no_progress`).
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from programs import budget, decisions
from programs.errors import LanguageModelError
from programs.lookahead import Lookahead
from programs.module import Resources
from programs.progress import emit
from programs.retrieval.pipeline import SearchResult
from programs.retrieval.plan import RetrievalPlan
from programs.rewriter import Rewriter, canonical
from signatures.vocabulary import Decision, FailureKind, StopReason

T = TypeVar("T")
_UNREADABLE: tuple[FailureKind, ...] = ("parse", "empty", "truncated", "context_overflow")
"""Failures of one prompt. The language model is there: another prompt, or a way that needs none, may do better."""


@dataclass(frozen=True)
class Turn:
    """What a hop begins with.

    Attributes:
        query: What was searched.
        found: What that found.
        how: The way that led here, None for the question itself.
        parts: Sub-questions that were searched side by side.
    """

    query: str
    found: SearchResult
    how: Decision | None = None
    parts: tuple[str, ...] = ()


@dataclass
class NextSearch:
    """The searches of one request.

    Attributes:
        question: The user's question.
        plan: What a search does.
        category: Only passages of this category; None for all.
        seen: Ids of the passages that some hop has looked at.
        tried: What was searched.
        taken: Ways that led to hops.
    """

    resources: Resources
    rewriter: Rewriter
    question: str
    plan: RetrievalPlan
    category: str | None
    seen: set[str] = field(default_factory=set)
    tried: list[str] = field(default_factory=list)
    taken: list[Decision] = field(default_factory=list)

    async def first(self, ahead: Lookahead | None) -> Turn:
        """The question itself; a search that was begun for it is not begun again."""
        parts, degraded = [self.question], []
        if self.plan.decompose:
            try:
                parts = await self.rewriter.parts(self.question)
            except LanguageModelError as error:
                degraded.append(f"decompose: {error.message}")
        emit("searching", 1, queries=tuple(parts))
        found = await ahead.result(parts, self.plan, self.category) if ahead is not None else None
        if found is None:
            found = await self._search(parts, self.plan)
        found = replace(found, degraded=(*degraded, *found.degraded))
        return self._begun(Turn(self.question, found, parts=tuple(parts) if len(parts) > 1 else ()))

    async def after(self, hop: int, reasons: Sequence[str], ways: Sequence[Decision]) -> tuple[Turn | None, StopReason]:
        """The next turn, or None and why there is none.

        Args:
            hop: Number of the hop that failed.
            reasons: Why it failed, for the rewriter.
            ways: What may be tried, in order.
        """
        failed: list[str] = []
        for way in ways:
            limit = budget.current().exhausted()
            if limit is not None:
                return None, limit
            try:
                turn = await self._attempt(way, hop, reasons)
            except LanguageModelError as error:
                if error.kind not in _UNREADABLE:
                    return None, limit_of(error) or "rewrite_failed"
                failed.append(f"{way}: {error.message}")
                continue
            if turn is not None:
                found = replace(turn.found, degraded=(*failed, *turn.found.degraded))
                return self._begun(replace(turn, found=found)), "max_hops"
        return None, "rewrite_failed" if failed else "no_progress"

    async def _attempt(self, way: Decision, hop: int, reasons: Sequence[str]) -> Turn | None:
        """The turn that a way leads to; None where it leads to nothing new."""
        queries, plan = [self.question], self.plan
        if way == "rewrite":
            reply = await self.rewriter.acall(question=self.question, tried_queries=self.tried, reasons=reasons)
            if not reply.changed:
                return None
            queries = [reply.query]
        elif way == "decompose":
            known = {canonical(text) for text in self.tried}
            queries = [part for part in await self.rewriter.parts(self.question) if canonical(part) not in known]
            if not queries:
                return None
        else:
            plan = self.plan.widened()
        query = queries[0] if len(queries) == 1 else self.question
        emit("rewriting", hop, query=query, how=way)
        emit("searching", hop + 1, queries=tuple(queries))
        found = await self._search(queries, plan)
        self.tried += [one for one in queries if one not in self.tried]
        new = [hit for hit in found.hits if hit.passage.id not in self.seen]
        # Where a store failed, that nothing new was found means nothing: the hop says so.
        if not new and not found.outages:
            return None
        if way == "widen":
            found = replace(found, hits=tuple(new[: self.plan.top_k]))
        return Turn(query, found, way, tuple(queries) if len(queries) > 1 else ())

    def _begun(self, turn: Turn) -> Turn:
        if turn.how is not None:
            self.taken.append(turn.how)
        self.tried += [one for one in (turn.query, *turn.parts) if one not in self.tried]
        self.seen.update(hit.passage.id for hit in turn.found.hits)
        return turn

    async def _search(self, queries: Sequence[str], plan: RetrievalPlan) -> SearchResult:
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

        text = queries[0] if len(queries) == 1 else self.question
        rewritten, imagined = await asyncio.gather(
            attempt("rewritten" in plan.routes, self.rewriter.formal(text), "", "rewritten"),
            attempt("hypothetical" in plan.routes, self.rewriter.hypothetical(text), "", "hypothetical"),
        )
        found = await self.resources.searcher.search(
            queries, plan, category=self.category, rewritten=rewritten, hypothetical=imagined
        )
        return replace(found, degraded=(*degraded, *found.degraded))


def limit_of(error: LanguageModelError) -> StopReason | None:
    """The limit of the request that an error stands for, if it is one."""
    match error.kind:
        case "deadline":
            return "deadline"
        case "budget":
            return "budget"
    return None


def ways(
    ranks: Sequence[decisions.Rank], search: NextSearch, how: Decision | None, *, proved: bool
) -> tuple[Decision, ...]:
    """What may be tried after the last of the hops; see `decisions.actions`."""
    taken: list[Decision] = [*search.taken, "decompose"] if search.plan.decompose else search.taken
    progress = decisions.progressed(ranks[:-1], ranks[-1])
    return decisions.actions(how=how, progress=progress, taken=taken, proved=proved)
