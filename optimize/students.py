"""A component as an optimizer sees it: a small module whose only predictor is the program's own.

Each run hands the predictor to the real module of the program, so that prompt, adapter, probabilities and
rules are those that a user meets, and copies that an optimizer makes stay independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy

from data.schema import Case, GroundingCase, QuestionCase, RelevanceCase, RewriteCase, UtilityCase
from optimize.examples import Component, generator_passages
from optimize.gold import GoldPassages
from optimize.recording import JUDGE_CLASSES, ask_judge
from programs.adaptive_rag import AdaptiveRAG
from programs.errors import LanguageModelError
from programs.language import NAMES, detect_language
from programs.lm import ask
from programs.module import AsyncModule, Resources
from programs.prompting import render_passages
from programs.rewriter import Rewriter
from programs.router import Router
from programs.settings import Role
from signatures.answering import AnswerFromPassages
from signatures.rewriting import RewriteQuery
from signatures.routing import RouteQuestion

PATHS: Mapping[Component, str] = {
    "router": "router.classify",
    "relevance": "self_rag.judges.relevance.judge",
    "grounding": "self_rag.judges.grounding.judge",
    "utility": "self_rag.judges.utility.judge",
    "generator": "self_rag.generate",
    "rewriter": "self_rag.rewriter.rewrite",
}
"""Path of the predictor that a component is compiled in, in the whole program."""
ROLES: Mapping[Component, tuple[Role, ...]] = {
    "router": ("router",),
    "relevance": ("judge",),
    "grounding": ("judge",),
    "utility": ("judge",),
    "generator": ("generator",),
    "rewriter": ("generator",),
    "program": ("router", "generator", "judge"),
}
"""Roles whose language model a compiled state is tied to."""


@dataclass(frozen=True)
class Desk:
    """What students share; a copy of a student keeps the same one.

    Attributes:
        resources: Of the program, with language models that keep replies.
        gold: Finds passages.
        cases: By id.
    """

    resources: Resources
    gold: GoldPassages
    cases: dict[str, Case] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Desk":
        return self


class Student(AsyncModule):
    """A module with one predictor; a reply that cannot be used becomes `error_kind`, never an exception.

    Args:
        signature: Of the predictor.
        desk: What students share.
    """

    def __init__(self, signature: type[dspy.Signature], desk: Desk) -> None:
        super().__init__()
        self.predict = dspy.Predict(signature)
        self.desk = desk

    async def aforward(self, *, id: str, **_: Any) -> dspy.Prediction:
        """Run the component on the case with this id; the other inputs are for the optimizer's eyes."""
        sampling = {"lm": self.predict.lm} if self.predict.lm is not None else {}
        try:
            with dspy.context(**sampling):
                return await self.run(self.desk.cases[id])
        except LanguageModelError as error:
            return dspy.Prediction(error_kind=error.kind)

    async def run(self, case: Any) -> dspy.Prediction:
        """Run the real module with this student's predictor."""
        raise NotImplementedError


class _Router(Router):
    async def _questions(self, question: str, history: str, given: Sequence[str]) -> list[str]:
        return list(given)  # what is asked back has a prompt of its own


class RouterStudent(Student):
    """The step of the router that asks the language model, without the classifier in front."""

    async def run(self, case: Any) -> dspy.Prediction:
        """Decide where a question goes."""
        router = _Router(replace(self.desk.resources, classifier=None))
        router.classify = self.predict
        made = await router.acall(question=case.question, history=case.history)
        kind = made.decision.error_kind
        return dspy.Prediction(error_kind=kind) if kind else made


class JudgeStudent(Student):
    """One of the judges, its language model's score alone."""

    async def run(self, case: RelevanceCase | GroundingCase | UtilityCase) -> dspy.Prediction:
        """Judge a case."""
        names: dict[type[Any], Any] = {
            RelevanceCase: "relevance",
            GroundingCase: "grounding",
            UtilityCase: "utility",
        }
        judge = JUDGE_CLASSES[names[type(case)]](self.desk.resources)
        judge.judge = self.predict
        verdict = await ask_judge(judge, case, self.desk.gold)
        if verdict.error_kind:
            return dspy.Prediction(error_kind=verdict.error_kind)
        return dspy.Prediction(verdict=verdict, score=verdict.score, passed=verdict.passed)


class GeneratorStudent(Student):
    """The step of the loop that writes the answer."""

    async def run(self, case: QuestionCase) -> dspy.Prediction:
        """Answer from passages."""
        reply = await ask(
            self.predict,
            self.desk.resources.lms["generator"],
            role="generator",
            passages=render_passages(generator_passages(case, self.desk.gold)),
            question=case.question,
            answer_language=NAMES[detect_language(case.question)],
        )
        return dspy.Prediction(answer=str(reply.answer).strip())


class RewriterStudent(Student):
    """The rewriter after a failed search."""

    async def run(self, case: RewriteCase) -> dspy.Prediction:
        """Write the next query."""
        writer = Rewriter(self.desk.resources)
        writer.rewrite = self.predict
        made: dspy.Prediction = await writer.acall(
            question=case.question, tried_queries=[case.failed_query], reasons=[case.reasons]
        )
        return made


class ProgramStudent(AsyncModule):
    """The whole program."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.rag = AdaptiveRAG(desk.resources)
        self.desk = desk

    async def aforward(self, *, id: str, **_: Any) -> dspy.Prediction:
        """Answer the question of a case."""
        case: Any = self.desk.cases[id]
        lm = self.rag.router.classify.lm
        with dspy.context(**({"lm": lm} if lm is not None else {})):
            made: dspy.Prediction = await self.rag.acall(
                question=case.question, category=getattr(case, "category", None)
            )
        return made


def build_student(component: Component, desk: Desk) -> dspy.Module:
    """The student of a component, with the prompt as it is written."""
    match component:
        case "router":
            return RouterStudent(RouteQuestion, desk)
        case "generator":
            return GeneratorStudent(AnswerFromPassages, desk)
        case "rewriter":
            return RewriterStudent(RewriteQuery, desk)
        case "program":
            return ProgramStudent(desk)
    return JudgeStudent(JUDGE_CLASSES[component](desk.resources).judge.signature, desk)


def predictors(component: Component, student: dspy.Module) -> dict[str, dspy.Predict]:
    """The predictors of a student by their path in the whole program."""
    if component == "program":
        return {name.removeprefix("rag."): predict for name, predict in student.named_predictors()}
    return {PATHS[component]: student.predict}
