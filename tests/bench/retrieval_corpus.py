"""Made-up passages in any number: text in which words are as frequent as in real text, vectors in clusters.

Every passage belongs to a topic of about 25. Its vector is the sum of what all share (as of a real
embedder, whose cosines of strangers are near 0.75), of its domain, its topic and of its own; a quarter
of its words are words of its topic. A query is about one passage: half of the passage's own vector
with as much of something else, and words of its topic and of its text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rjieba

from programs.retrieval.base import Row, Vector
from programs.retrieval.chunking import embedded_text, passage_id
from signatures.records import Passage

DIMENSION = 384
TOPIC_PASSAGES = 25
DOMAINS = 100
QUERIES = 200
CATEGORIES = ("员工手册", "产品手册", "API", "常见问题")
SAMPLES = Path(__file__).resolve().parents[2] / "data" / "corpus"
_BLOCK = 10_000  # passages that are made at once, each block from a seed of its own
_LENGTH = (20, 140)  # words of a passage
_TOPIC_WORDS = 8
_TOPIC_SHARE = 0.25


class Words:
    """A language: words by rank, and how often each comes (Zipf and Mandelbrot's law).

    The sample knowledge base gives the frequent words; the long tail is put together from their parts.

    Args:
        known: Words, with repetitions.
        parts: What further words are made of, two and two.
        size: Number of words.
        joiner: What stands between two words.
    """

    def __init__(self, known: list[str], parts: list[str], size: int, joiner: str, stop: str) -> None:
        rng = np.random.default_rng(7)
        unique, counts = np.unique(known, return_counts=True)
        ranked = dict.fromkeys(str(unique[i]) for i in np.argsort(-counts, kind="stable"))
        while len(ranked) < size:
            pairs = rng.choice(parts, size=(size, 2))
            ranked.update(dict.fromkeys(f"{first}{second}" for first, second in pairs[: size - len(ranked)]))
        self.words = np.array(list(ranked)[:size], dtype=object)
        weights = 1.0 / (np.arange(size) + 2.7) ** 1.07
        self._cumulative = np.cumsum(weights / weights.sum())
        self.joiner, self.stop = joiner, stop

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Ranks of words as they come in text."""
        return np.minimum(np.searchsorted(self._cumulative, rng.random(shape)), len(self.words) - 1)

    def text(self, ranks: Any, sentence: int = 12) -> str:
        """Words with a full stop after every twelfth."""
        chosen = self.words[ranks]
        parts = (self.joiner.join(chosen[start : start + sentence]) for start in range(0, len(chosen), sentence))
        return "".join(f"{part}{self.stop}" for part in parts)


def languages() -> tuple[Words, Words]:
    """Chinese and English."""
    samples = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SAMPLES.rglob("*.md")))
    chinese = [word for word in rjieba.cut(samples) if re.fullmatch(r"[\u4e00-\u9fff]+", word)]
    english = re.findall(r"[a-z]{2,}", samples.lower())
    halves = [half for word in english if len(word) > 5 for half in (word[: len(word) // 2], word[len(word) // 2 :])]
    return (
        Words(chinese, list("".join(chinese)), 60_000, "", "。"),
        Words(english, halves, 40_000, " ", ". "),
    )


@dataclass(frozen=True)
class Query:
    """A prepared query.

    Attributes:
        text: What is searched for words.
        vector: What is searched for neighbours, shape (384,).
    """

    text: str
    vector: Vector


class Corpus:
    """Passages of one number in a folder, made at the first use.

    Args:
        folder: Holds `SIZE.jsonl`, `SIZE.npy` and `SIZE.queries.json`.
        size: Number of passages.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self._texts = folder / f"{size}.jsonl"
        self._vectors = folder / f"{size}.npy"
        self._queries = folder / f"{size}.queries.json"

    def make(self) -> "Corpus":
        """Write the files, unless they are there."""
        if self._queries.exists():
            return self
        self._texts.parent.mkdir(parents=True, exist_ok=True)
        both = languages()
        topics = self.size // TOPIC_PASSAGES + 1
        rng = np.random.default_rng([self.size, 1])
        # From the 200th word down: what a topic is about is no everyday word.
        about = [np.exp(rng.uniform(np.log(200), np.log(len(w.words)), (topics, _TOPIC_WORDS))) for w in both]
        of_topic = [ranks.astype(np.int64).clip(0, len(w.words) - 1) for ranks, w in zip(about, both, strict=True)]
        centres = _directions(rng, 1) * 0.85 + _directions(rng, DOMAINS)[rng.integers(DOMAINS, size=topics)] * 0.3
        centres = (centres + _directions(rng, topics) * 0.3).astype(np.float32)
        vectors = np.lib.format.open_memmap(self._vectors, "w+", np.float32, (self.size, DIMENSION))
        asked = set(rng.choice(self.size, min(QUERIES, self.size), replace=False).tolist())
        queries = []
        with self._texts.open("w", encoding="utf-8") as file:
            for start in range(0, self.size, _BLOCK):
                number = min(_BLOCK, self.size - start)
                rng = np.random.default_rng([self.size, 2, start])
                topic = rng.integers(topics, size=number)
                own = _directions(rng, number) * 0.3
                vectors[start : start + number] = _unit(centres[topic] + own)
                lengths = rng.lognormal(np.log(55), 0.4, number).astype(int).clip(*_LENGTH)
                ranks = [words.draw(rng, (number, _LENGTH[1])) for words in both]
                on_topic = rng.random((number, _LENGTH[1])) < _TOPIC_SHARE
                which = rng.integers(_TOPIC_WORDS, size=(number, _LENGTH[1]))
                english = rng.random(number) < 0.3
                for i in range(number):
                    language = int(english[i])
                    line = ranks[language][i, : lengths[i]]
                    mask = on_topic[i, : lengths[i]]
                    line[mask] = of_topic[language][topic[i], which[i, : lengths[i]][mask]]
                    words = both[language]
                    file.write(json.dumps(_passage(start + i, words, line), ensure_ascii=False) + "\n")
                    if start + i in asked:
                        chosen = [*of_topic[language][topic[i], :3], *rng.choice(line, 3)]
                        mixed = centres[topic[i]] + (own[i] + _directions(rng, 1)[0] * 0.3) * 0.7
                        queries.append(
                            {"text": words.joiner.join(words.words[chosen]), "vector": _unit(mixed).tolist()}
                        )
        vectors.flush()
        self._queries.write_text(json.dumps(queries, ensure_ascii=False), encoding="utf-8")
        return self

    def rows(self) -> Iterator[Row]:
        """All rows, in order."""
        with self._texts.open(encoding="utf-8") as file:
            for line in file:
                passage = Passage.model_validate_json(line)
                yield Row(passage.id, "passage", embedded_text(passage), passage)

    def vectors(self) -> Vector:
        """Shape (size, 384), on disk."""
        vectors: Vector = np.load(self._vectors, mmap_mode="r")
        return vectors

    def queries(self) -> list[Query]:
        """The prepared queries."""
        found = json.loads(self._queries.read_text(encoding="utf-8"))
        return [Query(query["text"], np.array(query["vector"], dtype=np.float32)) for query in found]

    def nearest(self, queries: list[Query], top_k: int) -> list[list[float]]:
        """The cosines of the truly nearest rows of each query, best first."""
        asked = np.stack([query.vector for query in queries])
        best = np.full((len(queries), top_k), -2.0, dtype=np.float32)
        vectors = self.vectors()
        for start in range(0, self.size, 50_000):
            scores = np.concatenate([best, asked @ vectors[start : start + 50_000].T], axis=1)
            best = -np.partition(-scores, top_k - 1, axis=1)[:, :top_k]
        return [sorted(row, reverse=True) for row in best.tolist()]


def _passage(number: int, words: Words, line: Any) -> dict[str, str]:
    document = f"bench/{number // 40:06}.md"
    section, text = words.text(line[:4]).strip("。. "), words.text(line)
    return {
        "id": f"{passage_id(document, section, text)}{number:x}",
        "document_id": document,
        "title": words.text(line[-3:]).strip("。. "),
        "section": section,
        "category": CATEGORIES[number // 40 % len(CATEGORIES)],
        "text": text,
    }


def _directions(rng: np.random.Generator, number: int) -> Any:
    """Random vectors of about length 1 in which, as in an embedder's, some directions say more than others."""
    spectrum = 1.0 / np.sqrt(1.0 + np.arange(DIMENSION) / 40)
    return rng.normal(size=(number, DIMENSION)) * (spectrum / np.linalg.norm(spectrum))


def _unit(vectors: Any) -> Any:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
