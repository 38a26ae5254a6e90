"""Base of this project's modules: written once asynchronously, callable both ways.

Also `Resources`, what a program needs that is never copied or saved.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dspy

from programs import background
from programs.classifier import IntentClassifier
from programs.lm import RoleLMs
from programs.opinions import OpinionCache
from programs.settings import Settings
from programs.similarity import Similarity
from programs.weighing import JudgeState
from signatures.vocabulary import JudgeName

if TYPE_CHECKING:
    from programs.retrieval.pipeline import Searcher
    from programs.state import CompiledState


@dataclass(frozen=True)
class Resources:
    """Language models, stores and settings of a program.

    Optimizers copy programs deeply; this stays one object, so that connections and files are opened
    once. It is no `dspy.Parameter`, so nothing of it is saved.

    Attributes:
        lms: Language models by role.
        searcher: Searches the indexes.
        settings: All settings.
        thresholds: Score from which a judge's verdict passes.
        judges: How each judge weighs its evidence, by name; one that is not named takes the language
            model's probability as it is.
        similarity: Compares texts for the judges that weigh; None where none does.
        state: The compiled state that is used.
        opinions: What judges' language models said, kept.
        classifier: First stage of the router; None leaves every question to the language model.
        close: Closes the stores; the program cannot search afterwards.
    """

    lms: RoleLMs
    searcher: "Searcher"
    settings: Settings
    thresholds: Mapping[JudgeName, float]
    judges: Mapping[JudgeName, JudgeState] = field(default_factory=dict)
    similarity: Similarity | None = None
    state: "CompiledState | None" = None
    classifier: IntentClassifier | None = None
    opinions: OpinionCache = field(default_factory=OpinionCache, repr=False)
    close: Callable[[], None] = field(default=lambda: None, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resources":
        return self


class AsyncModule(dspy.Module):
    """A module whose `aforward` is the algorithm; `forward` runs it on the private loop."""

    aforward: Callable[..., Coroutine[Any, Any, dspy.Prediction]]

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return background.run(self.aforward(**inputs))
