"""What `bench_loop` measures on: an index in a folder, the program on it, and requests in any number."""

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from unittest.mock import patch

from latency_lm import LatencyLM
from loop_questions import Question, question, write_documents

from programs import background, build_program
from programs.adaptive_rag import AdaptiveRAG
from programs.build import build_indexer
from programs.retrieval.base import Embedder, Vector
from programs.settings import PREFIX, Settings
from signatures.records import Answer
from signatures.vocabulary import Strategy

STRATEGY: Strategy = "fast_retrieval"
"""Searches with no language model, so that a hop is what its name says on both sides."""


class Timed:
    """An embedder whose time is known; the program counts it as the stores'."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._lock = threading.Lock()
        self.seconds = 0.0
        self.name, self.dimension = embedder.name, embedder.dimension
        self.max_tokens, self.count_tokens = embedder.max_tokens, embedder.count_tokens
        self.encode_document = embedder.encode_document

    def encode_query(self, texts: Sequence[str]) -> Vector:
        start = time.monotonic()
        vectors = self._embedder.encode_query(texts)
        with self._lock:
            self.seconds += time.monotonic() - start
        return vectors


@dataclass
class Setting:
    """What everything is measured on.

    Attributes:
        rag: The program, as `build_program` makes it.
        lm: The server.
        embedder: The program's embedder.
        latency: Seconds of a reply.
        numbers: Of questions, so that none is asked twice.
    """

    rag: AdaptiveRAG
    lm: LatencyLM
    embedder: Timed
    latency: float
    numbers: Iterator[int] = field(default_factory=count)

    def new(self, amount: int, *, hops: int = 1) -> list[Question]:
        return [question(next(self.numbers), hops=hops) for _ in range(amount)]

    async def ask(self, asked: Question, strategy: Strategy | None = STRATEGY) -> Answer:
        """The record; where it is not the one that was to be expected, there is nothing to compare."""
        record = await self.record(asked, strategy)
        if wrong := trouble(record, hops=asked.hops):
            raise AssertionError(f"{asked}: {wrong}")
        return record

    async def record(self, asked: Question, strategy: Strategy | None = STRATEGY) -> Answer:
        """The record, whatever it is."""
        record: Answer = (await self.rag.acall(question=asked.text, strategy=strategy)).record
        return record


def trouble(record: Answer, *, hops: int) -> str:
    """What went otherwise than the script has it; "" for nothing."""
    verdicts = [verdict for hop in record.trace for verdict in (hop.relevance, hop.grounding, hop.utility) if verdict]
    said = [*record.degraded, *(f"{v.judge}: {v.error_kind}" for v in verdicts if v.error_kind)]
    if record.status != "answered" or len(record.trace) != hops:
        said.append(f"{record.status} after {len(record.trace)} hops ({record.stop_reason})")
    return "; ".join(said)


@contextmanager
def prepared(folder: Path, lm: LatencyLM, embedder: Embedder, *, latency: float) -> Iterator[Setting]:
    """An index in `folder` and a program on it, with the defaults of every setting but home and language model."""
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        settings = Settings(_env_file=None, home=folder / "home", lm=lm.line)  # type: ignore[call-arg]  # of pydantic
    write_documents(folder / "documents")
    timed = Timed(embedder)
    with patch("programs.build.load_embedder", lambda spec: timed):
        with build_indexer("documents", settings) as indexer:
            indexer.index_paths([folder / "documents"])
        rag = build_program(settings)
    setting = Setting(rag, lm, timed, latency)
    try:
        background.run(setting.ask(setting.new(1)[0]))  # opens stores and connections
        yield setting
    finally:
        rag.resources.close()


async def run(setting: Setting, questions: Iterable[Question], *, in_flight: int) -> list[Answer]:
    """Ask all, questions with one hop, `in_flight` at any time; starts are spread over a request, as in life."""
    rest = iter(questions)
    records: list[Answer] = []

    async def work(place: int) -> None:
        await asyncio.sleep(3 * setting.latency * place / in_flight)
        for asked in rest:
            records.append(await setting.record(asked))

    await asyncio.gather(*(work(place) for place in range(in_flight)))
    return records
