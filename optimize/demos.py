"""What may stand in a compiled prompt: demonstrations that are right, fit, and give nothing away."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import dspy

from data import loading
from data.schema import Case
from optimize.tasks import Task
from programs.adapter import FieldAdapter
from programs.errors import AdaptiveRAGError
from programs.lm import MAX_TOKENS
from programs.retrieval.enriching import TOKENS_PER_BYTE
from programs.settings import Role

WITHIN = 12
"""Letters from which a text of dev or test counts also as a part of another; shorter ones only as a whole."""
_TEXTS = ("question", "failed_query", "answer")


class DemonstrationError(AdaptiveRAGError):
    """A demonstration may not stand in a prompt."""


class HeldOut:
    """The texts of dev and test cases, of all components.

    Args:
        cases: All labelled cases.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        self._whole: dict[str, str] = {}
        for case in cases:
            if case.split == "train":
                continue
            for text in map(canonical, texts_of(case)):
                if text:
                    self._whole[text] = case.id
        self._long = {text: case for text, case in self._whole.items() if len(text) >= WITHIN}

    def found_in(self, text: str) -> str:
        """Id of a dev or test case whose words a text holds; "" for none."""
        plain = canonical(text)
        if plain in self._whole:
            return self._whole[plain]
        return next((case for held, case in self._long.items() if held in plain), "")

    def found_in_case(self, case: Case) -> str:
        """The same for the texts of a case."""
        return next((found for text in texts_of(case) if (found := self.found_in(text))), "")

    def found_in_fields(self, fields: Mapping[str, Any]) -> str:
        """The same for the fields of an example; passages are the knowledge base, not the cases."""
        texts = (value for name, value in fields.items() if name not in ("passages", "id") and isinstance(value, str))
        return next((found for text in texts if (found := self.found_in(text))), "")


def held_out() -> HeldOut:
    """The dev and test texts of all files of labelled cases."""
    loaders: tuple[Any, ...] = (
        loading.load_route_cases,
        loading.load_question_cases,
        loading.load_relevance_cases,
        loading.load_grounding_cases,
        loading.load_utility_cases,
        loading.load_rewrite_cases,
    )
    return HeldOut(case for load in loaders for case in load())


def texts_of(case: Case) -> list[str]:
    """The texts that belong to a case alone."""
    # The answer of a question is made from its passages; only one that is judged is a case's own.
    names = [name for name in _TEXTS if name != "answer" or hasattr(case, "passed")]
    return [str(getattr(case, name, "")) for name in names]


def canonical(text: str) -> str:
    """A text without width, case, spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if char.isalnum())


def tidy(task: Task, predict: dspy.Predict) -> int:
    """Leave in a predictor what belongs into a state: the signature's fields of demonstrations that are right.

    Args:
        task: Knows what is right; of the whole program it is the optimizer's threshold that decided.
        predict: The predictor; changed in place.

    Returns:
        How many demonstrations were dropped because they do not satisfy the metric.
    """
    names = set(predict.signature.fields)
    kept = []
    for demo in predict.demos:
        shown = {name: value for name, value in dict(demo.items()).items() if name in names}
        if task.component == "program" or satisfies(task, shown):
            kept.append(shown)
    dropped = len(predict.demos) - len(kept)
    predict.demos, predict.traces, predict.train, predict.lm = kept, [], [], None
    return dropped


def satisfies(task: Task, shown: Mapping[str, Any]) -> bool:
    """Whether a demonstration is of a train case, and right for it."""
    scores = [task.demo_score(task.desk.cases[one.id], shown).score for one in task.train if _same(one, shown)]
    return bool(scores) and max(scores) >= task.good


def _same(one: dspy.Example, shown: Mapping[str, Any]) -> bool:
    inputs = {name: value for name, value in one.inputs().items() if name not in ("id", "passages")}
    return all(shown.get(name) == value for name, value in inputs.items())


def check(task: Task, predictors: Mapping[str, dspy.Predict], roles: Mapping[str, Role], held: HeldOut) -> None:
    """Hold compiled predictors against the rules.

    Args:
        task: What was compiled.
        predictors: By path.
        roles: Role of each predictor, by path.
        held: Dev and test texts.

    Raises:
        DemonstrationError: A demonstration is not right, the prompt does not fit the target model, or
            dev or test text stands in it.
    """
    for path, predict in predictors.items():
        leaked = held.found_in(predict.signature.instructions)
        for demo in predict.demos:
            leaked = leaked or held.found_in_fields(demo)
            if task.component != "program" and not satisfies(task, demo):
                raise DemonstrationError(f"{path}: a demonstration does not satisfy the metric: {str(demo)[:200]}")
        if leaked:
            raise DemonstrationError(
                f"{path}: the prompt holds the words of {leaked}, a case of dev or test.",
                hint="Its figures would mean nothing. Look for the case in the train split.",
            )
        endpoint = task.desk.resources.lms.endpoints(roles[path])[0]
        needed = prompt_tokens(predict, task) + MAX_TOKENS[roles[path]]
        if needed > endpoint.context:
            raise DemonstrationError(
                f"{path}: with {len(predict.demos)} demonstrations a prompt takes about {needed} tokens, "
                f"the language model has {endpoint.context}.",
                hint="Take a smaller --budget, or a language model with a larger context (?context=…).",
            )


def prompt_tokens(predict: dspy.Predict, task: Task) -> int:
    """About how many tokens the longest prompt has, demonstrations included."""
    adapter = FieldAdapter()
    inputs = set(predict.signature.input_fields)
    # The same demonstrations stand in every prompt: only the longest inputs matter.
    rows = [{k: v for k, v in one.items() if k in inputs} for one in (*task.train, *task.dev)] or [{}]
    longest = max(rows, key=lambda row: len(str(row)))
    text = "".join(str(m["content"]) for m in adapter.format(predict.signature, predict.demos, longest))
    return round(TOKENS_PER_BYTE * len(text.encode("utf-8", "replace")))
