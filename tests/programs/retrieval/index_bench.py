"""An index on real stores for the tests of indexing, and runs of it that are killed at a chosen moment."""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from programs.retrieval.base import Vector
from programs.retrieval.catalog import Catalog
from programs.retrieval.indexing import Indexer
from programs.retrieval.milvus import MilvusDenseStore
from programs.retrieval.text_index import TantivyTextStore

STEPS = {
    "dense": ("upsert", "delete", "flush", "clear"),
    "text": ("upsert", "delete", "flush", "clear"),
    "catalog": (
        "begin",
        "advance",
        "settle",
        "begin_emptying",
        "end_emptying",
        "set_facts",
        "begin_rebuilding",
        "begin_switching",
        "end_rebuilding",
        "settle_rebuilding",
    ),
}
"""Calls that change something on disk."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "pytest",
        "pymilvus",
        "milvus_lite",
        "tantivy",
        "rjieba",
        "opencc",
        "snowballstemmer",
        "programs.retrieval.indexing",
        "programs.retrieval.milvus",
        "programs.retrieval.text_index",
    ]
)


class HashEmbedder:
    """Unit vectors that only depend on the text; a token is a character."""

    def __init__(self, name: str = "hash", dimension: int = 8, max_tokens: int = 512) -> None:
        self.name = name
        self.dimension = dimension
        self.max_tokens = max_tokens
        self.batches: list[int] = []

    def count_tokens(self, text: str) -> int:
        return len(text)

    def encode_query(self, texts: Sequence[str]) -> Vector:
        return self.encode_document(texts)

    def encode_document(self, texts: Sequence[str]) -> Vector:
        self.batches.append(len(texts))
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        vectors = np.array([np.random.default_rng(seed).normal(size=self.dimension) for seed in seeds])
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class Index:
    """An indexer with its parts, on real stores."""

    def __init__(self, folder: Path, embedder: Any, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.embedder = embedder
        self.catalog = Catalog(folder / "catalog.sqlite")
        self.dense = MilvusDenseStore(
            str(folder / "vectors.db"), collection="t", dimension=embedder.dimension, embedder=embedder.name
        )
        self.text = TantivyTextStore(folder / "text")
        self.indexer = Indexer(self.catalog, self.dense, self.text, embedder, **options)

    def rows(self) -> set[str]:
        """The rows, after a check that both stores hold exactly those of the catalogue, each once."""
        assert self.dense.ids() == self.text.ids()
        listed = [row for entry in self.catalog.entries("documents").values() for row in entry.rows]
        assert sorted(listed) == sorted(self.dense.ids())
        assert self.dense.count() == self.text.count() == len(listed)
        return self.dense.ids()

    def contents(self) -> list[dict[str, Any]]:
        """All passages as the dense store has them, after a check that the text store has the same."""
        rows = self.rows()
        found = self.dense.search(self.embedder.encode_query(["x"])[0], top_k=len(rows) + 10) if rows else []
        passages = sorted((match.passage for match in found), key=lambda passage: passage.id)
        assert {passage.id for passage in passages} == rows
        for passage in passages:
            matches = self.text.search(f"{passage.heading} {passage.text}", top_k=len(rows))
            assert passage in [match.passage for match in matches]
        return [passage.model_dump() for passage in passages]

    def close(self) -> None:
        self.dense.close()
        self.text.close()
        self.catalog.close()


def run_killed(folder: Path, action: Callable[[Index], Any], *, step: int = 0, seconds: float = 0.0) -> int | None:
    """Run `action` on an index in a process of its own.

    Args:
        folder: The index.
        action: A function of a module that can be imported.
        step: The process is killed before this call of `STEPS`, from 1; at the end of all for one more.
        seconds: Or after so many seconds.

    Returns:
        Calls that were made; None where the process was killed.
    """
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_child, args=(folder, action, step, seconds, sender))
    process.start()
    sender.close()
    process.join(30)
    if process.exitcode == -signal.SIGKILL:
        return None
    assert process.exitcode == 0
    made: int = receiver.recv()
    return made


def _child(folder: Path, action: Callable[[Index], Any], step: int, seconds: float, sender: Any) -> None:
    import programs.retrieval.indexing as indexing

    indexing.BATCH_PASSAGES = 4
    index = Index(folder, HashEmbedder())
    made = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made == step:
                die()
            return call(*arguments, **options)

        return run

    for part, names in STEPS.items():
        for name in names:
            # Of the class: a rebuild writes to stores of its own, and then exchanges them.
            owner = type(getattr(index, part))
            setattr(owner, name, counted(getattr(owner, name)))
    for name in ("rename_collection", "drop_collection"):
        setattr(index.dense._client, name, counted(getattr(index.dense._client, name)))
    if seconds:
        threading.Timer(seconds, die).start()
    action(index)
    if made + 1 == step or seconds:
        die()
    sender.send(made)
    index.close()


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Files with their texts, below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder
