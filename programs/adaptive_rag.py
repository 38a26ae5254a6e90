"""The program: a question goes in, a checked answer, a question back or an honest no comes out.

    route the question
    direct_reply    -> one short reply, no retrieval
    *_retrieval, deep_search, code_search
                    -> the Self-RAG loop with the strategy's plan
    clarify_needed  -> two or three concrete questions back
    fallback        -> a polite refusal

A newcomer reads this file first, then `self_rag.py`.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from programs import budget, trust
from programs.budget import Budget
from programs.citing import cite
from programs.decisions import status_of
from programs.errors import LanguageModelError
from programs.judges import Judges
from programs.language import NAMES, detect_language, message
from programs.lm import ask
from programs.lookahead import Lookahead
from programs.module import AsyncModule, Resources
from programs.progress import emit
from programs.retrieval.plan import RetrievalPlan
from programs.rewriter import Rewriter
from programs.router import Router
from programs.self_rag import SelfRAG
from programs.strategies import INTENT_STRATEGY, SAFE_STRATEGY, STRATEGY_TABLE
from signatures.answering import ReplyDirectly
from signatures.records import Answer, Passage, RouteDecision
from signatures.vocabulary import Intent, Status, StopReason, Strategy

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")


@dataclass(frozen=True)
class _Request:
    """What was asked: in the user's words, and so that it needs no history."""

    question: str
    asked: str
    history: str
    category: str | None
    patch: Mapping[str, Any]
    ask_back: bool


class AdaptiveRAG(AsyncModule):
    """Router, strategies and the Self-RAG loop as one DSPy module.

    Args:
        resources: Language models, stores and settings.
    """

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.router = Router(resources)
        self.reply = dspy.Predict(ReplyDirectly)
        self.self_rag = SelfRAG(resources)
        self.resources = resources

    @property
    def judges(self) -> Judges:
        """The three judges: `rag.judges.relevance(question=..., passages=[...])`."""
        return self.self_rag.judges

    @property
    def rewriter(self) -> Rewriter:
        """The rewriter: `rag.rewriter(question=..., tried_queries=[...], reasons=[...])`."""
        return self.self_rag.rewriter

    async def aforward(
        self,
        *,
        question: str,
        category: str | None = None,
        history: str = "",
        strategy: Strategy | None = None,
        plan: Mapping[str, Any] | None = None,
        ask_back: bool = True,
    ) -> dspy.Prediction:
        """Answer a question.

        Args:
            question: What the user wrote, in any state.
            category: Only passages of this category; None for all.
            history: Earlier turns as text, one line each; "" at the start.
            strategy: Runs this strategy without asking the router.
            plan: Patch over the strategy's retrieval plan, such as `{"top_k": 8}`.
            ask_back: False searches what the router would ask back, as where the user has just answered that.

        Returns:
            The fields of `signatures.records.Answer`, and the record itself as `record`.

        Raises:
            PlanError: `plan` has a wrong key or value. Nothing else: faults of language models and
                stores end in a status.
        """
        RetrievalPlan().patched(dict(plan or {}))  # a wrong patch is an error whatever the router decides
        settings = self.resources.settings
        account = Budget(
            seconds=settings.deadline,
            max_lm_calls=settings.max_lm_calls,
            max_tokens=settings.max_tokens,
            max_cost=settings.max_cost,
        )
        with budget.spending(account):
            self._mark_untrusted(account)
            record = await self._answer(clean_question(question), category, history, strategy, plan or {}, ask_back)
        fields = {name: getattr(record, name) for name in Answer.model_fields}
        return dspy.Prediction(**fields, record=record)

    def _mark_untrusted(self, account: Budget) -> None:
        """Say in the answer which judges failed their planted cases (`programs.canaries`)."""
        judges = self.judges
        prompts = [(judge.name, judge.judge) for judge in (judges.relevance, judges.grounding, judges.utility)]
        for note in trust.notes(self.resources.settings.home, prompts, self.resources.lms.identity("judge")):
            account.note(note)

    async def _answer(
        self,
        question: str,
        category: str | None,
        history: str,
        forced: Strategy | None,
        patch: Mapping[str, Any],
        ask_back: bool,
    ) -> Answer:
        language = detect_language(question)
        limit = self.resources.settings.max_question_chars
        if not any(char.isalnum() for char in question):
            return _ending(question, _by_rule("没有文字"), "invalid_question", message("invalid_question", language))
        if len(question) > limit:
            text = message("too_long", language).replace("{length}", str(len(question))).replace("{limit}", str(limit))
            return _ending(question[:limit], _by_rule("太长"), "invalid_question", text)
        asked = await self._standalone(question, history)
        return await self._routed(_Request(question, asked, history, category, patch, ask_back), forced)

    async def _routed(self, request: _Request, forced: Strategy | None) -> Answer:
        """Decide and follow; what is most likely searched is searched while the router thinks."""
        begun: list[Lookahead] = []

        def look_ahead(guess: Intent | None) -> None:
            likely = SAFE_STRATEGY if guess is None else INTENT_STRATEGY.get(guess, SAFE_STRATEGY)
            plan = STRATEGY_TABLE[likely].plan
            if plan is not None:
                planned = self._plan(plan, request.patch)
                ahead = Lookahead.begin(self.resources.searcher, request.asked, planned, request.category)
                begun.extend([ahead] if ahead is not None else [])

        try:
            decision = await self._decide(request, forced, look_ahead)
            emit("routed", decision=decision)
            return await self._follow(request, decision, begun[0] if begun else None)
        finally:
            for ahead in begun:
                ahead.drop()

    async def _follow(self, request: _Request, decision: RouteDecision, ahead: Lookahead | None) -> Answer:
        language = detect_language(request.question)
        entry = STRATEGY_TABLE[decision.strategy]
        match entry.ending:
            case "reply":
                return await self._reply(request, decision)
            case "refuse":
                return _ending(request.question, decision, "refused", message("refused", language))
            case "clarify":
                lines = [f"{n}. {text}" for n, text in enumerate(decision.clarification_questions, start=1)]
                answer = "\n".join([message("clarify", language), *lines])
                return _ending(request.question, decision, "clarify", answer)
            case "retrieve":
                assert entry.plan is not None
                return await self._retrieve(request, decision, self._plan(entry.plan, request.patch), ahead)

    async def _standalone(self, question: str, history: str) -> str:
        """The question without references to earlier turns; as it is where that fails."""
        if not history:
            return question
        try:
            return await self.rewriter.standalone(question, history)
        except LanguageModelError as error:
            budget.current().note(f"对话改写失败，按原话检索：{error.message}")
            return question

    async def _decide(
        self, request: _Request, forced: Strategy | None, thinking: Callable[[Intent | None], None]
    ) -> RouteDecision:
        if forced is None:
            routed = await self.router.acall(
                question=request.asked, history=request.history, thinking=thinking, ask_back=request.ask_back
            )
            if routed.decision.error_kind is not None:
                budget.current().note(f"路由：{routed.decision.reasoning}，已按 {routed.decision.strategy} 处理")
            return routed.decision  # type: ignore[no-any-return]
        language = detect_language(request.asked)
        back = (message("clarify_1", language), message("clarify_2", language))
        return RouteDecision(
            intent="UNKNOWN",
            confidence=1.0,
            reasoning="由用户指定",
            strategy=forced,
            clarification_questions=back if forced == "clarify_needed" else (),
            source="user",
        )

    def _plan(self, plan: RetrievalPlan, patch: Mapping[str, Any]) -> RetrievalPlan:
        max_hops = self.resources.settings.max_hops
        if max_hops is not None:
            plan = plan.model_copy(update={"max_hops": max_hops})
        return plan.patched(dict(patch))

    async def _reply(self, request: _Request, decision: RouteDecision) -> Answer:
        language = detect_language(request.question)
        try:
            reply = await ask(
                self.reply,
                self.resources.lms["generator"],
                role="generator",
                history=request.history,
                question=request.question,
                answer_language=NAMES[language],
            )
            text = str(reply.answer).strip()
        except LanguageModelError as error:
            budget.current().note(f"语言模型：{error.message}")
            text = ""
        return _ending(request.question, decision, "answered", text or message("greeting", language))

    async def _retrieve(
        self, request: _Request, decision: RouteDecision, plan: RetrievalPlan, ahead: Lookahead | None
    ) -> Answer:
        question = request.question
        loop = await self.self_rag.acall(question=request.asked, plan=plan, category=request.category, ahead=ahead)
        language = detect_language(question)
        answer, citations = cite(loop.answer, loop.passages)
        status = _status(loop)
        if status == "best_effort":
            reason = "；".join(dict.fromkeys(loop.reasons)) or loop.stop_reason
            answer = f"{answer}\n{message('unverified', language).replace('{reason}', reason)}"
        elif status != "answered":
            answer = message(status, language)
        record = _ending(question, decision, status, answer, stop_reason=loop.stop_reason, passages=loop.passages)
        degraded = dict.fromkeys([*record.degraded, *(text for hop in loop.trace for text in hop.degraded)])
        return record.model_copy(
            update={
                "citations": citations,
                "trace": loop.trace,
                "best_hop": loop.best_hop,
                "degraded": tuple(degraded),
            }
        )


def clean_question(question: str) -> str:
    """`question` with what no language model can receive replaced, and outer white space gone.

    Raises:
        TypeError: It is no string.
    """
    if not isinstance(question, str):
        raise TypeError(f"question is a str, not {type(question).__name__}")
    text = question.encode("utf-8", "replace").decode("utf-8")
    return unicodedata.normalize("NFC", _CONTROL.sub(" ", text)).strip()


def _status(loop: dspy.Prediction) -> Status:
    return status_of(passed=loop.passed, answered=bool(loop.answer), stop=loop.stop_reason, searched=loop.searched)


def _by_rule(reason: str) -> RouteDecision:
    return RouteDecision(intent="UNKNOWN", confidence=1.0, reasoning=reason, strategy="fallback", source="rule")


def _ending(
    question: str,
    decision: RouteDecision,
    status: Status,
    answer: str,
    *,
    stop_reason: StopReason | None = None,
    passages: tuple[Passage, ...] = (),
) -> Answer:
    account = budget.current()
    return Answer(
        question=question,
        answer=answer,
        status=status,
        stop_reason=stop_reason or ("invalid_question" if status == "invalid_question" else "no_retrieval"),
        decision=decision,
        strategy=decision.strategy,
        passages=passages,
        degraded=tuple(account.degraded),
        usage=account.usage(),
    )
