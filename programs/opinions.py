"""What a judge's language model alone says, before evidence is weighed: heard by those who study it, and
kept, so that nobody pays twice for the same question about the same text.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import dspy
from cachetools import LRUCache

from programs.lm import wanted_trace
from programs.state import signature_digest
from signatures.vocabulary import JudgeName

KEPT = 20_000
"""Opinions of one program; about half a kilobyte each."""
Opinion = list[float | None]
"""What the language model alone says: its probability of 是 for each label, None where it gave none."""


class Kept(NamedTuple):
    """One opinion.

    Attributes:
        scores: Probability of 是 for each label, in order.
        reason: The model's sentence, "" where none is asked for.
    """

    scores: tuple[float, ...]
    reason: str = ""


_heard: ContextVar[list[Opinion] | None] = ContextVar("adaptive_rag_heard", default=None)


@contextmanager
def hearing() -> Iterator[list[Opinion]]:
    """Collect the language model's own opinions in the block; it is asked for each of them."""
    opinions: list[Opinion] = []
    token = _heard.set(opinions)
    try:
        yield opinions
    finally:
        _heard.reset(token)


def report(opinion: Opinion) -> Opinion:
    """Tell whoever listens."""
    heard = _heard.get()
    if heard is not None:
        heard.append(opinion)
    return opinion


def judge_key(name: JudgeName, predict: dspy.Predict, lm: str) -> str:
    """Twelve digits that change with the language model, and with every word of the judge's prompt."""
    demos = [dict(demo) for demo in predict.demos]
    prompt = json.dumps([name, signature_digest(predict.signature), demos], ensure_ascii=False, default=str)
    return hashlib.sha256(f"{lm}\0{prompt}".encode("utf-8", "replace")).hexdigest()[:12]


class OpinionCache:
    """What a judge's language model said, by judge, prompt, language model and everything that it was shown.

    The least recently used go first. What failed is not kept. An optimizer that follows every call, or
    somebody who listens, is never answered from here, and what they hear is not kept: it may be sampled.

    Args:
        size: Most opinions that are kept.
    """

    def __init__(self, size: int = KEPT) -> None:
        self._kept: LRUCache[str, Kept] = LRUCache(size)
        self._lock = threading.Lock()

    @staticmethod
    def key(judge: str, *inputs: str) -> str:
        """Key of one opinion.

        Args:
            judge: As `judge_key` gives it, of the language model that answered.
            inputs: Everything that the prompt shows.
        """
        text = json.dumps([judge, *inputs], ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

    def get(self, key: str) -> Kept | None:
        """What is kept, None where it is not known or has to be asked for."""
        if _followed():
            return None
        with self._lock:
            found: Kept | None = self._kept.get(key)
            return found

    def put(self, key: str, kept: Kept) -> None:
        """Keep an opinion."""
        if _followed():
            return
        with self._lock:
            self._kept[key] = kept


def _followed() -> bool:
    return _heard.get() is not None or wanted_trace() is not None
