"""The shared words: every closed set of labels that crosses a module border.

The values are data (they stand in labelled files, compiled states and traces),
so renaming one is a change of file format.
"""

from typing import Literal, get_args

Intent = Literal["CHIT_CHAT", "FACT_LOOKUP", "HOW_TO", "COMPARISON", "CODE_SEARCH", "UNKNOWN"]
"""What the user wants, as the router sees it."""

Strategy = Literal[
    "direct_reply",
    "fast_retrieval",
    "standard_retrieval",
    "deep_search",
    "code_search",
    "fallback",
    "clarify_needed",
]
"""The road a question takes; `programs.strategies` says what each does."""

Decision = Literal[
    "finish",
    "rewrite",  # go on with other words
    "decompose",  # go on with the parts of the question
    "widen",  # go on with more routes, among what no hop has seen
    "fallback",
]
"""What a hop ends with."""

JudgeName = Literal["relevance", "grounding", "utility"]

Label = Literal["是", "否"]
"""The two answers of a judge. One token each, so that their probability can be read."""

Status = Literal[
    "answered",  # an answer that passed all three judges, or a reply that needed none
    "best_effort",  # the best-judged hop, although no hop passed; marked as unverified
    "clarify",  # concrete questions back to the user
    "no_evidence",  # the knowledge base was searched and does not hold the answer
    "refused",  # outside what the assistant does
    "unavailable",  # a store or every language model failed: nothing can be said about the question
    "invalid_question",  # nothing to work with (blank, only punctuation, too long)
]

StopReason = Literal[
    "judges_passed",
    "no_retrieval",  # the strategy does not retrieve
    "max_hops",
    "no_evidence",
    "no_progress",  # neither other words nor the parts nor other routes find anything new
    "rewrite_failed",
    "deadline",
    "budget",
    "retrieval_unavailable",
    "lm_unavailable",
    "invalid_question",
]

FailureKind = Literal[
    "parse",  # the reply does not hold the fields that were asked for
    "truncated",  # the reply was cut at the token limit, twice
    "empty",  # no text, or only an unfinished thought
    "timeout",
    "connection",
    "rate_limit",
    "server",
    "auth",
    "context_overflow",
    "rejected",  # the endpoint refuses the request for another reason
    "deadline",  # the request's own time was used up
    "budget",  # the request's own calls or tokens were used up
]
"""Why a language model call gave nothing usable."""

INTENTS: tuple[Intent, ...] = get_args(Intent)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
JUDGES: tuple[JudgeName, ...] = get_args(JudgeName)
STATUSES: tuple[Status, ...] = get_args(Status)
FAILURES: tuple[FailureKind, ...] = get_args(FailureKind)
YES: Label = "是"
NO: Label = "否"
