"""A connection to Milvus, and its errors as ours.

A URI that ends in `.db` is a Milvus Lite file, for one process at a time; every other one is a
server. pymilvus comes in as an argument, from the one file that imports it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval import milvus_lite_file as lite_file
from programs.retrieval import milvus_lite_search
from programs.retrieval.milvus_rows import NAME

_CONNECT_SECONDS = 5.0  # most that is waited for a connection
_PORT = 19530
_GONE = (100, 101)  # not found; not loaded, as Milvus Lite leaves a collection that was renamed
# What a Milvus 2.3 says, under the code of every other fault, where a name is taken away while it searches.
_GONE_WORDS = ("can't find collection", "collection not found")


class CollectionGone(StoreUnavailable):
    """The collection of a request is not there under this name (any more)."""


class MilvusConnection:
    """An open client.

    Attributes:
        client: The `MilvusClient`.
        lite: Whether this is a Milvus Lite file.
        lock: Held while writing.
        version: What the server calls itself; None where it does not say.

    Args:
        pymilvus: The library.
        uri: `….db` or `http://host:19530`.
        token: `user:password` or an API key.
        timeout: Seconds of one request.

    Raises:
        StoreUnavailable: There is no server, or it does not answer.
        StoreLocked: Another process holds the file.
        StoreMismatch: The path holds something else.
    """

    def __init__(self, pymilvus: ModuleType, uri: str, *, token: str | None, timeout: float) -> None:
        self._pymilvus = pymilvus
        self._uri = uri
        self._timeout = min(timeout, _CONNECT_SECONDS)
        self._file: lite_file.LiteFile | None = None
        self._closed = False
        self.lite = uri.endswith(".db")
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.client: Any = self._open_file(Path(uri)) if self.lite else self._connect(token)
        try:
            with self.translated():
                self.version: str | None = self.client.get_server_version(timeout=self._timeout) or None
        except StoreUnavailable:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The URI without user and password."""
        parts = urlparse(self._uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else self._uri

    def close(self) -> None:
        """Close the client; the last one of a Milvus Lite file gives its lock back."""
        if self._closed:
            return
        self._closed = True
        self.client.close()
        if self._file is not None:
            lite_file.leave(self._file)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of pymilvus, gRPC and the network as errors of this program."""
        import grpc

        try:
            yield
        except self._pymilvus.MilvusException as error:
            if error.code == 1100 or error.is_input_error:
                raise StoreMismatch(
                    f"Milvus does not take this: {error.message}",
                    store=NAME,
                    hint="Check the version of the server and the name of the collection.",
                ) from error
            found = self._unavailable(error.message)
            if error.code in _GONE or any(words in error.message.lower() for words in _GONE_WORDS):
                raise CollectionGone(found.message, store=NAME, hint=found.hint) from error
            raise found from error
        except (grpc.RpcError, OSError) as error:
            raise self._unavailable(str(error)) from error

    def drop_broken_indexes(self, reason: str) -> bool:
        """Remove the vector indexes of a Milvus Lite file that a kill left half written; it makes them anew.

        Args:
            reason: What the engine said.

        Returns:
            Whether that was the reason, and another attempt is worth while.
        """
        if self._file is None or "index_read.cpp" not in reason:
            return False
        lite_file.drop_indexes(self._file)
        return True

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"Milvus at {self.address} cannot be used: {reason.strip()[:500] or 'no reason given'}",
            store=NAME,
            hint="Check that the server runs and that address and token are right.",
        )

    def _open_file(self, path: Path) -> Any:
        milvus_lite_search.install()
        file = lite_file.join(path)
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            with file.starting:
                client = self._pymilvus.MilvusClient(str(file.path), dedicated=True, timeout=self._timeout)
            file.sign()
        except self._pymilvus.MilvusException as error:
            lite_file.leave(file)
            raise lite_file.why_closed(file) from error
        except OSError as error:
            lite_file.leave(file)
            raise StoreUnavailable(f"The folder of {file.path} cannot be used: {error}", store=NAME) from error
        self._file, self.lock = file, file.lock
        return client

    def _connect(self, token: str | None) -> Any:
        parts = urlparse(self._uri)
        with self.translated():
            if parts.hostname:
                # gRPC keeps on trying where a refused connection is known at once.
                port = parts.port or (443 if parts.scheme == "https" else _PORT)
                socket.create_connection((parts.hostname, port), timeout=self._timeout).close()
            return self._pymilvus.MilvusClient(self._uri, token=token or "", dedicated=True, timeout=self._timeout)
