"""How near texts are in meaning, sentence by sentence, with the vectors of the passages kept.

One vector of a passage is a mean of what stands in it; the answer is one sentence. So a passage is as near
to a question as its nearest sentence is (maximum similarity, as in late interaction; Khattab and Zaharia,
SIGIR 2020, with sentences for tokens). Each sentence is embedded with its heading, which says what it is about.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from programs.retrieval.base import Embedder, Vector
from programs.retrieval.sentences import sentences
from signatures.records import Passage

KEPT_PASSAGES = 4096
"""A few sentences each, 1.5 kB a sentence: some 30 MB."""
MAX_SENTENCES = 24
"""Of one passage; a longer one is cut between sentences into so many pieces of equal length."""


class Similarity:
    """Cosines between texts; any thread may call, calls block.

    Args:
        embedder: Makes the vectors.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._kept: OrderedDict[str, Vector] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def embedder(self) -> str:
        """Name of the embedder; what was fitted to its cosines fits no other."""
        return self._embedder.name

    def nearest_sentence(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Cosine of a query with the nearest sentence of each passage, in [-1, 1]; same order."""
        if not passages:
            return []
        vector = self._embedder.encode_query([query])[0]
        return [float((piece @ vector).max()) for piece in self._pieces(passages)]

    def support(self, statements: Sequence[str], passages: Sequence[Passage]) -> list[float]:
        """Cosine of each statement with the nearest sentence of any passage, in [-1, 1]; same order."""
        if not statements or not passages:
            return [0.0] * len(statements)
        own = self._embedder.encode_query(list(statements))
        known = np.concatenate(self._pieces(passages))
        return [float(value) for value in (own @ known.T).max(axis=1)]

    def between(self, first: str, second: str) -> float:
        """Cosine of two texts that stand on the same side, such as a question and an answer."""
        vectors = self._embedder.encode_query([first, second])
        return float(vectors[0] @ vectors[1])

    def _pieces(self, passages: Sequence[Passage]) -> list[Vector]:
        """Vectors of the sentences of each passage, shape (sentences, dimension)."""
        keys = [f"{passage.heading}\0{passage.text}" for passage in passages]
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
        missing = {key: p for key, p in zip(keys, passages, strict=True) if key not in found}
        texts = {key: _sentences(passage) for key, passage in missing.items()}
        if texts:
            vectors = self._embedder.encode_document([text for group in texts.values() for text in group])
            start = 0
            for key, group in texts.items():
                found[key] = vectors[start : start + len(group)].copy()  # a view would keep all of them alive
                start += len(group)
        with self._lock:
            for key in keys:
                self._kept[key] = found[key]
                self._kept.move_to_end(key)
            while len(self._kept) > KEPT_PASSAGES:
                self._kept.popitem(last=False)
        return [found[key] for key in keys]


def _sentences(passage: Passage) -> list[str]:
    found = sentences(passage.text) or [passage.text]
    step = -(-len(found) // MAX_SENTENCES)
    pieces = ["".join(found[start : start + step]) for start in range(0, len(found), step)]
    return [f"{passage.heading}\n{piece}" if passage.heading else piece for piece in pieces]
