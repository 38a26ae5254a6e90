"""The compiled state: prompts that an optimizer wrote and models that weigh evidence, with where they come from.

One JSON file for a set of language models, in `programs/compiled/`. It is only used with the language
model and the embedder it was made with, and only as long as the signatures are those it was made for:
a prompt that was tuned for another field list is worse than none.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Literal, Self

import dspy
from pydantic import Field, ValidationError, model_validator

from programs.adapter import FieldAdapter
from programs.errors import CompiledStateError
from programs.features import GROUNDING, RELEVANCE, UTILITY
from programs.settings import Role
from programs.weighing import JudgeState
from signatures.records import Record
from signatures.vocabulary import JudgeName

FOLDER = Path(__file__).parent / "compiled"
SUFFIX = ".state.json"
_FEATURES: dict[JudgeName, Mapping[str, int]] = {"relevance": RELEVANCE, "grounding": GROUNDING, "utility": UTILITY}
_log = logging.getLogger(__name__)


class CompiledState(Record):
    """What is stored.

    Attributes:
        format: Of the file.
        lm: Identity of the language model by role, for the roles that matter to what is stored.
        embedder: Name of the embedder.
        signatures: Digest of the signature of each predictor that is stored or calibrated, by path.
        predictors: DSPy's state of each predictor that was compiled, by path.
        judges: How each judge weighs its evidence.
        card: By component: data digest, seed, figures with intervals, cost.
    """

    format: Literal[1] = 1
    lm: dict[Role, str]
    embedder: str
    signatures: dict[str, str] = Field(default_factory=dict)
    predictors: dict[str, dict[str, Any]] = Field(default_factory=dict)
    judges: dict[JudgeName, JudgeState] = Field(default_factory=dict)
    card: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_features(self) -> Self:
        # Found now, or in the middle of a user's question.
        for name, judge in self.judges.items():
            unknown = {*judge.weighed.features} - {*_FEATURES[name], "lm"} | {*judge.alone.features} - {
                *_FEATURES[name]
            }
            if unknown:
                raise ValueError(f"{name} weighs what nobody measures: {', '.join(sorted(unknown))}")
        return self

    def fits(self, lm: Mapping[Role, str], embedder: str) -> bool:
        """Whether it was made with these language models and this embedder."""
        return self.embedder == embedder and all(lm.get(role) == name for role, name in self.lm.items())


def signature_digest(signature: type[dspy.Signature]) -> str:
    """Sixteen digits that change with every word, field or type of a signature."""
    fields = {
        name: [str(field.annotation), (field.json_schema_extra or {}).get("desc", ""), repr(field.metadata)]
        for name, field in signature.fields.items()
    }
    return hashlib.sha256(json.dumps([signature.instructions, fields], ensure_ascii=False).encode()).hexdigest()[:16]


def read_state(path: Path) -> CompiledState:
    """A stored state.

    Raises:
        CompiledStateError: The file cannot be read, or is none.
    """
    try:
        return CompiledState.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompiledStateError(f"The compiled state {path} cannot be read: {error.strerror}.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise CompiledStateError(
            f"{path} is no compiled state: {str(error).splitlines()[0]}",
            hint="Compile again: python -m optimize compile, then promote.",
        ) from error


def find_state(lm: Mapping[Role, str], embedder: str, folder: Path = FOLDER) -> CompiledState | None:
    """The stored state for these language models, None where there is none.

    Several that fit are put together, as the roles may have language models of their own; where two say
    something about the same predictor, the one that was made for more roles counts.

    Raises:
        CompiledStateError: A file of the folder cannot be read.
    """
    fitting = [state for path in sorted(folder.glob(f"*{SUFFIX}")) if (state := read_state(path)).fits(lm, embedder)]
    return reduce(merge_states, sorted(fitting, key=lambda state: len(state.lm))) if fitting else None


def judge_path(judge: JudgeName) -> str:
    """Path of a judge's predictor in the program."""
    return f"self_rag.judges.{judge}.judge"


def without(state: CompiledState, paths: Iterable[str]) -> CompiledState:
    """A state without what it says about some predictors, calibrations included."""
    gone = set(paths)
    return state.model_copy(
        update={
            "signatures": {path: value for path, value in state.signatures.items() if path not in gone},
            "predictors": {path: value for path, value in state.predictors.items() if path not in gone},
            "judges": {name: value for name, value in state.judges.items() if judge_path(name) not in gone},
        }
    )


def merge_states(below: CompiledState, above: CompiledState) -> CompiledState:
    """Two states as one. What `above` says about a predictor replaces all that `below` says about it.

    A calibration belongs to its prompt: a judge's weights never meet a prompt that they were not fitted for.
    """
    paths = {*above.signatures, *above.predictors, *map(judge_path, above.judges)}
    kept = without(below, paths)
    return CompiledState(
        lm={**kept.lm, **above.lm},
        embedder=above.embedder,
        signatures={**kept.signatures, **above.signatures},
        predictors={**kept.predictors, **above.predictors},
        judges={**kept.judges, **above.judges},
        card={**kept.card, **above.card},
    )


def check_signatures(state: CompiledState, program: dspy.Module) -> None:
    """Hold a state against the signatures of a program that nothing was compiled into yet.

    Raises:
        CompiledStateError: A predictor is gone, or its signature is another one now; the message says which.
    """
    known = {name: signature_digest(predict.signature) for name, predict in program.named_predictors()}
    wrong = [name for name, digest in state.signatures.items() if known.get(name) != digest]
    missing = [name for name in state.predictors if name not in state.signatures]
    if wrong or missing:
        raise CompiledStateError(
            f"The compiled state was made for other signatures: {', '.join(wrong or missing)}.",
            hint="Compile and calibrate again, and promote what is better: python -m optimize --help",
        )


def apply_state(state: CompiledState, program: dspy.Module) -> None:
    """Put the compiled prompts of a state into a program.

    Raises:
        CompiledStateError: As `check_signatures`, or a predictor's state cannot be read.
    """
    check_signatures(state, program)
    predictors = dict(program.named_predictors())
    for name, stored in state.predictors.items():
        try:
            predictors[name].load_state(stored)
            # What cannot be shown to a language model is found now, not at the first question.
            FieldAdapter().format(predictors[name].signature, predictors[name].demos, {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CompiledStateError(f"The compiled prompt of {name} cannot be read: {error!r}.") from error
