"""The stores of a program's indexes: opened once, at the first use, and healed first."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar

from filelock import FileLock, Timeout

from programs.errors import StoreLocked
from programs.retrieval.base import DenseStore, Embedder, TextStore
from programs.retrieval.catalog import Catalog
from programs.retrieval.code_index import CODE
from programs.retrieval.copying import Place
from programs.retrieval.enrichment import EnrichmentCache
from programs.retrieval.indexing import DOCUMENTS, Indexer
from programs.retrieval.pipeline import IndexStores
from programs.retrieval.plan import Index
from programs.retrieval.preparing import Splitter, Workers
from programs.settings import Settings

T = TypeVar("T")
C = TypeVar("C", bound="_Closable")
INDEXES: tuple[Index, ...] = ("documents", "code")
SPLITTERS: dict[Index, Splitter] = {"documents": DOCUMENTS, "code": CODE}


class _Closable(Protocol):
    def close(self) -> None: ...


class _Once(Generic[C]):
    """Opens something at the first use and keeps it; a failed opening is tried again next time."""

    def __init__(self, open_it: Callable[[], C]) -> None:
        self._open = open_it
        self._lock = threading.Lock()
        self._value: C | None = None

    def __call__(self) -> C:
        with self._lock:
            if self._value is None:
                self._value = self._open()
            return self._value

    def close(self) -> None:
        """Close what was opened, if anything was."""
        with self._lock:
            if self._value is not None:
                self._value.close()
                self._value = None


class Stores:
    """Opens the stores that the settings name, once each, and heals what a crash left half done.

    Args:
        settings: Which stores.
        embedder: Its name and dimension are tied to the dense store.
    """

    def __init__(self, settings: Settings, embedder: Embedder) -> None:
        self.settings = settings
        self.embedder = embedder
        settings.index_dir.mkdir(parents=True, exist_ok=True)
        self.enrichments = EnrichmentCache(settings.enrichment_file)
        self.catalog = _Once(lambda: Catalog(settings.index_dir / "catalog.sqlite"))
        self._dense = {index: _Once(partial(self._open_dense, index)) for index in INDEXES}
        self._text = {index: _Once(partial(self._open_text, index)) for index in INDEXES}
        self._healed: set[Index] = set()
        self._healing = threading.Lock()

    def dense(self, index: Index) -> DenseStore:
        """The dense store of an index."""
        return self._dense[index]()

    def text(self, index: Index) -> TextStore:
        """The text store of an index."""
        return self._text[index]()

    def index(self, index: Index) -> IndexStores:
        """The stores of an index for searching: healed first, opened at the first search."""

        def healed(open_it: Callable[[Index], T]) -> T:
            with self._healing:
                if index not in self._healed:
                    self._heal(index)
                    self._healed.add(index)
            return open_it(index)

        return IndexStores(partial(healed, self.dense), partial(healed, self.text))

    def indexer(self, index: Index, workers: Workers | None = None) -> Indexer:
        """Writes to an index."""
        return Indexer(
            self.catalog(),
            self.dense(index),
            self.text(index),
            self.embedder,
            index=index,
            splitter=SPLITTERS[index],
            enrichments=self.enrichments,
            workers=workers,
        )

    def place(self, index: Index) -> Place:
        """The stores of an index with its catalogue, for copying; not healed."""
        return Place(self.catalog(), self.dense(index), self.text(index))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the right to write; one process at a time.

        Raises:
            StoreLocked: Another process is writing.
        """
        path = self.settings.index_dir / "writer.lock"
        try:
            with FileLock(path, timeout=0):
                yield
        except Timeout as error:
            raise StoreLocked(
                f"Another process is writing to the index ({path}).",
                store="catalog",
                hint="Wait until it has finished.",
            ) from error

    def close(self) -> None:
        """Close what was opened."""
        for once in self._dense.values():
            once.close()
        for text in self._text.values():
            text.close()
        self.catalog.close()

    def _heal(self, index: Index) -> None:
        if self.catalog().pending(index):
            try:
                with self.writing():
                    self.indexer(index).recover()
            except StoreLocked:
                pass  # not a crash: another process is at work, and its documents will be whole soon

    def _open_dense(self, index: Index) -> DenseStore:
        from programs.retrieval.milvus import MilvusDenseStore

        settings = self.settings
        return MilvusDenseStore(
            settings.milvus_uri or str(settings.index_dir / "vectors.db"),
            collection=f"{settings.store_prefix}_{index}",
            dimension=self.embedder.dimension,
            embedder=self.embedder.name,
            token=settings.milvus_token.get_secret_value() if settings.milvus_token else None,
        )

    def _open_text(self, index: Index) -> TextStore:
        settings = self.settings
        if settings.elasticsearch_url:
            from programs.retrieval.elastic import ElasticIndex, ElasticTextStore

            key = settings.elasticsearch_api_key
            connection = ElasticIndex(
                settings.elasticsearch_url,
                prefix=f"{settings.store_prefix}_{index}",
                api_key=key.get_secret_value() if key else None,
                ca_certs=settings.elasticsearch_ca_certs,
            )
            return ElasticTextStore(connection)
        from programs.retrieval.text_index import TantivyTextStore

        return TantivyTextStore(settings.index_dir / f"{index}.text")
