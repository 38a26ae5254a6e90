"""Other words for what is searched: after a failed hop, for a follow-up question, for the parts of a
comparison, and for the two routes that search with a language model's words.
"""

from collections.abc import Sequence

import dspy

from programs.lm import ask
from programs.module import AsyncModule, Resources
from programs.retrieval.tokens import fold
from signatures.rewriting import (
    DecomposeQuestion,
    ParaphraseQuestion,
    ResolveFollowUp,
    RewriteQuery,
    WriteHypotheticalPassage,
)

MAX_PARTS = 4


class Rewriter(AsyncModule):
    """Writes queries; every method raises `LanguageModelError` when there is no usable reply."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.rewrite = dspy.Predict(RewriteQuery)
        self.resolve = dspy.Predict(ResolveFollowUp)
        self.decompose = dspy.Predict(DecomposeQuestion)
        self.paraphrase = dspy.Predict(ParaphraseQuestion)
        self.imagine = dspy.Predict(WriteHypotheticalPassage)
        self.resources = resources

    async def aforward(
        self, *, question: str, tried_queries: Sequence[str] = (), reasons: Sequence[str] = ()
    ) -> dspy.Prediction:
        """A query for the next hop.

        Args:
            question: The user's question.
            tried_queries: What was searched already.
            reasons: Why it failed, one sentence each.

        Returns:
            `query`, and `changed`: whether it differs from the question and all tried queries
            in more than spelling.
        """
        tried = list(tried_queries) or [question]
        reply = await ask(
            self.rewrite,
            self._lm,
            role="generator",
            question=question,
            tried_queries="\n".join(f"- {query}" for query in tried),
            reasons="\n".join(f"- {reason}" for reason in reasons),
        )
        query = reply.query.strip().strip("\"“”'")
        seen = {canonical(text) for text in tried}
        return dspy.Prediction(query=query, changed=bool(canonical(query)) and canonical(query) not in seen)

    async def standalone(self, question: str, history: str) -> str:
        """A follow-up as a question that needs no history."""
        reply = await ask(self.resolve, self._lm, role="generator", history=history, question=question)
        resolved = str(reply.standalone_question).strip()
        return resolved if canonical(resolved) else question

    async def parts(self, question: str) -> list[str]:
        """The sub-questions of a question, without doubles; at least one, at most `MAX_PARTS`."""
        reply = await ask(self.decompose, self._lm, role="generator", question=question)
        unique: dict[str, str] = {}
        for part in reply.parts:
            unique.setdefault(canonical(part), part.strip())
        unique.pop("", None)
        return list(unique.values())[:MAX_PARTS] or [question]

    async def formal(self, question: str) -> str:
        """The question in the words of a handbook, for the `rewritten` route."""
        return str((await ask(self.paraphrase, self._lm, role="generator", question=question)).query).strip()

    async def hypothetical(self, question: str) -> str:
        """A passage that could answer the question, for the `hypothetical` route."""
        return str((await ask(self.imagine, self._lm, role="generator", question=question)).passage).strip()

    @property
    def _lm(self) -> dspy.LM:
        return self.resources.lms["generator"]


def canonical(query: str) -> str:
    """A query without case, width, script, spaces and punctuation: two equal ones search the same."""
    return "".join(char for char in fold(query) if char.isalnum())
