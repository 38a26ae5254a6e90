"""The usual corrective chain, for comparison: one node after the other, one language model call a node.

    retrieve -> generate -> relevance -> grounding -> utility -> end, or rewrite -> retrieve

Written with LangGraph's `StateGraph` and the `openai` client as their documentation does it. It searches with
the program's searcher and plan and sends the words of the program's signatures, so that both sides have the
same passages, the same prompts and the same number of hops; what differs is the order and what is around it.
Relevance is one call a hop, for all passages.
"""

import json
from typing import Any, TypedDict

import dspy
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from openai import AsyncOpenAI

from programs.adapter import FieldAdapter
from programs.adaptive_rag import AdaptiveRAG
from programs.prompting import render_passages
from programs.retrieval.plan import RetrievalPlan
from signatures.answering import AnswerFromPassages
from signatures.judging import JudgeGrounding, JudgeRelevance, JudgeUtility
from signatures.rewriting import RewriteQuery
from signatures.routing import RouteQuestion

LOGPROBS = {"logprobs": True, "top_logprobs": 10}


class ChainState(TypedDict, total=False):
    """What the nodes hand on."""

    question: str
    query: str
    tried: list[str]
    passages: str
    answer: str
    passed: bool
    reasons: list[str]
    hops: int


class SequentialChain:
    """The chain, ready to be asked.

    Args:
        rag: The program whose index is searched.
        url: Address of the language model server.
        plan: What is searched, and how many hops there may be.
        routed: Whether a language model routes first. The plan is the same whatever it says.
    """

    def __init__(self, rag: AdaptiveRAG, url: str, plan: RetrievalPlan, *, routed: bool = False) -> None:
        self._searcher = rag.resources.searcher
        self._plan = plan
        self._client = AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=0)
        self._adapter = FieldAdapter()
        self._graph = self._build(routed)

    async def __call__(self, question: str) -> ChainState:
        state: Any = await self._graph.ainvoke(
            {"question": question, "query": question, "tried": [], "hops": 0}, {"recursion_limit": 100}
        )
        return state  # type: ignore[no-any-return]  # the graph gives back what it was given, completed

    def _build(self, routed: bool) -> "CompiledStateGraph[ChainState, None, ChainState, ChainState]":
        graph = StateGraph(ChainState)
        for node in (self.retrieve, self.generate, self.relevance, self.grounding, self.utility, self.rewrite):
            graph.add_node(node.__name__, node)
        if routed:
            graph.add_node("route", self.route)
            graph.add_edge(START, "route")
            graph.add_edge("route", "retrieve")
        else:
            graph.add_edge(START, "retrieve")
        for first, then in (
            ("retrieve", "generate"),
            ("generate", "relevance"),
            ("relevance", "grounding"),
            ("grounding", "utility"),
            ("rewrite", "retrieve"),
        ):
            graph.add_edge(first, then)
        graph.add_conditional_edges("utility", self._next, ["rewrite", END])
        return graph.compile()

    async def route(self, state: ChainState) -> ChainState:
        await self._ask(RouteQuestion, {"logprobs": True, "top_logprobs": 20}, history="", question=state["question"])
        return {}

    async def retrieve(self, state: ChainState) -> ChainState:
        found = await self._searcher.search([state["query"]], self._plan)
        passages = render_passages([hit.passage for hit in found.hits])
        return {"passages": passages, "hops": state["hops"] + 1, "tried": [*state["tried"], state["query"]]}

    async def generate(self, state: ChainState) -> ChainState:
        reply = await self._ask(
            AnswerFromPassages,
            passages=state["passages"],
            question=state["question"],
            answer_language="中文",
        )
        return {"answer": reply["answer"], "passed": True, "reasons": []}

    async def relevance(self, state: ChainState) -> ChainState:
        reply = await self._ask(JudgeRelevance, LOGPROBS, passages=state["passages"], question=state["question"])
        return self._noted(state, "是" in reply["verdicts"], "没有相关的资料")

    async def grounding(self, state: ChainState) -> ChainState:
        inputs = {"passages": state["passages"], "question": state["question"], "answer": state["answer"]}
        reply = await self._ask(JudgeGrounding, LOGPROBS, **inputs)
        return self._noted(state, reply["verdict"] == "是", reply["reason"])

    async def utility(self, state: ChainState) -> ChainState:
        reply = await self._ask(JudgeUtility, LOGPROBS, question=state["question"], answer=state["answer"])
        return self._noted(state, reply["verdict"] == "是", reply["reason"])

    async def rewrite(self, state: ChainState) -> ChainState:
        reply = await self._ask(
            RewriteQuery,
            question=state["question"],
            tried_queries="\n".join(f"- {query}" for query in state["tried"]),
            reasons="\n".join(f"- {reason}" for reason in state["reasons"]),
        )
        return {"query": reply["query"]}

    def _next(self, state: ChainState) -> str:
        return END if state["passed"] or state["hops"] == self._plan.max_hops else "rewrite"

    def _noted(self, state: ChainState, passed: bool, reason: str) -> ChainState:
        reasons = state["reasons"] if passed else [*state["reasons"], reason]
        return {"passed": state["passed"] and passed, "reasons": reasons}

    async def _ask(
        self, signature: type[dspy.Signature], more: dict[str, Any] | None = None, **inputs: str
    ) -> dict[str, Any]:
        fields = {name: {"type": "string"} for name in signature.output_fields}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        messages: Any = self._adapter.format(signature, [], inputs)
        form: Any = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 768, "response_format": form, **(more or {})}
        response = await self._client.chat.completions.create(model="scripted", messages=messages, **options)
        reply: dict[str, Any] = json.loads(response.choices[0].message.content or "{}")
        return reply
