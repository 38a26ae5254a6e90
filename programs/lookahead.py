"""A search that begins before it is known to be needed: while the router's language model thinks.

It costs a search that may be thrown away, and no language model call; plans that ask a language model before
they search are not guessed at.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from programs.retrieval.pipeline import Searcher, SearchResult
from programs.retrieval.plan import MAX_TOP_K, RetrievalPlan, RouteName

_NEED_A_MODEL: frozenset[RouteName] = frozenset({"rewritten", "hypothetical"})
_NO_MATTER = {"max_hops", "fallback_routes", "decompose", "top_k"}
"""Keys of a plan that do not change what its first search does; `top_k` only says where the hits are cut."""


@dataclass
class Lookahead:
    """A search that was begun.

    Attributes:
        query: What is searched.
        plan: How.
        category: Only passages of this category; None for all.
        task: The search.
    """

    query: str
    plan: RetrievalPlan
    category: str | None
    task: "asyncio.Task[SearchResult]"

    @classmethod
    def begin(cls, searcher: Searcher, query: str, plan: RetrievalPlan, category: str | None) -> "Lookahead | None":
        """Begin a search; None for a plan whose first search waits for a language model."""
        if plan.decompose or _NEED_A_MODEL & {*plan.routes}:
            return None
        # Serves every plan that only wants more or fewer passages.
        uncut = plan.model_copy(update={"top_k": MAX_TOP_K})
        return cls(query, plan, category, asyncio.create_task(searcher.search([query], uncut, category=category)))

    async def result(self, queries: Sequence[str], plan: RetrievalPlan, category: str | None) -> SearchResult | None:
        """What was found, where it is what is asked for now; else None, and the search is given up."""
        same = plan.model_dump(exclude=_NO_MATTER) == self.plan.model_dump(exclude=_NO_MATTER)
        if list(queries) != [self.query] or not same or category != self.category:
            self.drop()
            return None
        found = await self.task
        return replace(found, hits=found.hits[: plan.top_k])

    def drop(self) -> None:
        """Give the search up."""
        self.task.cancel()
