"""A connection to Elasticsearch, and its errors as ours. The only file that imports `elasticsearch`."""

import re
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from programs.errors import StoreMismatch, StoreUnavailable

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

NAME = "elasticsearch"

_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,100}")
_KEY = re.compile(r"[\x21-\x7e]+")
_USER = re.compile("//([^/]*)@")
_RETRIES = 2  # of a request that was refused, or answered with 429, 502, 503 or 504; a time-out is never repeated
_CHUNK_ROWS = 500
_CHUNK_BYTES = 8 * 2**20  # well under the 100 MB that a server takes, so that it can work on a part meanwhile
_ROW_RETRIES = 5  # of single rows that a busy server pushes back; waits 0.2, 0.4, … 3.2 s
_PAGE = 5_000


class IndexGone(StoreUnavailable):
    """The alias or index of a request is not there (any more)."""


class ElasticIndex:
    """An open client, shared by the stores of one index.

    Attributes:
        client: The `Elasticsearch` client; thread-safe.
        writer: The same with more time, for what waits for disks and for other nodes.
        prefix: Beginning of all names on the server.
        version: What the server calls itself, such as `9.1.4`.

    Args:
        url: `http://host:9200` or `https://…`; user and password may stand in it.
        prefix: Small letters, digits and `_`.
        api_key: Where the server asks for one. It needs the cluster privilege `monitor`, and `all` for
            the indexes `PREFIX_*`.
        ca_certs: File of the certificate authority, where the system does not know it.
        verify: Whether the server's certificate is checked.
        timeout: Seconds of one search.
        write_timeout: Seconds of one request that writes.

    Raises:
        StoreUnavailable: There is no server, it does not answer, or it refuses the key.
        StoreMismatch: It is no Elasticsearch, or one of another major version than the client.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "adaptive_rag",
        api_key: str | None = None,
        ca_certs: Path | str | None = None,
        verify: bool = True,
        timeout: float = 10.0,
        write_timeout: float = 60.0,
    ) -> None:
        import elasticsearch.helpers

        self._library = elasticsearch
        self._url = url
        self._timeout = timeout
        self._write_timeout = write_timeout
        self._secrets = [secret for secret in (api_key, _password(url)) if secret]
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        if not _PREFIX.fullmatch(prefix):
            raise StoreMismatch(f"{prefix!r} cannot begin the name of an index.", store=NAME, hint="Use [a-z0-9_].")
        if api_key is not None and not _KEY.fullmatch(api_key):
            # The HTTP library would show the key when it complains.
            raise self._unavailable("the API key is empty or has white space in it", _KEY_HINT)
        self.prefix = prefix
        self.client: Elasticsearch = self._open(api_key, ca_certs, verify)
        self.writer = self.client.options(request_timeout=write_timeout)
        try:
            self.version = self._check_version()
        except BaseException:  # also an interrupt leaves no connection open
            self.close()
            raise

    @property
    def address(self) -> str:
        """The URL without user and password."""
        return _USER.sub("//", self._url)

    def join(self) -> None:
        """Another store uses this connection."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """A store is closed; the last one closes the client."""
        with self._lock:
            self._users -= 1
            last = self._users <= 0
        if last:
            self.close()

    def close(self) -> None:
        """Close the client; may be called twice."""
        if not self._closed:
            self._closed = True
            self.client.close()

    def bulk(self, actions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send index and delete actions to an alias; rows that a busy server pushes back are sent again.

        Returns:
            What failed for good: `_id`, `status` and `error` of each. A deleted row that was not
            there is no failure.

        Raises:
            IndexGone: An action's alias is not there.
            StoreUnavailable: The server is down, or too busy for too long.
        """
        with self.translated():
            _, failures = self._library.helpers.bulk(
                self.writer,
                actions,
                raise_on_error=False,
                require_alias=True,  # else a missing index would be made, with guessed fields
                chunk_size=_CHUNK_ROWS,
                max_chunk_bytes=_CHUNK_BYTES,
                max_retries=_ROW_RETRIES,
                initial_backoff=0.2,
                max_backoff=5.0,
            )
        items = [item for failure in cast("list[dict[str, Any]]", failures) for item in failure.values()]
        failed = [item for item in items if "error" in item]  # not so a deleted row that was not there
        for item in failed:
            if item["status"] == 404:
                raise IndexGone(f"Elasticsearch at {self.address} has no {item['_index']!r}.", store=NAME)
            if item["status"] in (403, 429) or item["status"] >= 500:  # 403: read-only, as the disk is full
                raise self._unavailable(f"rows were not taken ({item['status']}: {self.reason(item)})", _BUSY_HINT)
        return failed

    def wait(self, index: str) -> None:
        """Until an index can be searched: one that another process is just making cannot."""
        with self.translated():
            # Not by its colour: a new index is yellow, although no search can work yet.
            self.client.cluster.health(index=index, wait_for_active_shards=1, timeout=f"{int(800 * self._timeout)}ms")

    def scan(self, index: str, field: str) -> set[str]:
        """The values that a keyword field has in all rows, as of one moment."""
        query = {"query": {"match_all": {}}, "fields": [field], "source": False}
        with self.translated():
            # Without its own time-out, the helper waits for ever.
            hits = self._library.helpers.scan(
                self.client, query=query, index=index, size=_PAGE, request_timeout=self._timeout, scroll="2m"
            )
            return {str(hit["fields"][field][0]) for hit in hits}

    def reason(self, answer: Mapping[str, Any]) -> str:
        """Why, in the server's words, without secrets."""
        error = answer.get("error", "")
        if isinstance(error, Mapping):
            causes = error.get("root_cause") or [error]
            error = causes[0].get("reason") or error.get("type", "")
        return self._mask(str(error))[:500]

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the client and of the network as errors of this program."""
        library = self._library
        try:
            yield
        except (library.ApiError, library.TransportError, library.helpers.ScanError) as error:
            # A server may repeat a secret in its answer.
            shown = f"{error} {getattr(error, 'body', '')}"
            raise self._translate(error) from (None if any(s in shown for s in self._secrets) else error)

    def _translate(self, error: Any) -> StoreMismatch | StoreUnavailable:
        library = self._library
        match error:
            case library.UnsupportedProductError():
                return StoreMismatch(f"The server at {self.address} is no Elasticsearch.", store=NAME, hint=_URL_HINT)
            case library.AuthorizationException() if error.error == "cluster_block_exception":
                return self._unavailable(f"403: {self.reason(_body(error))}", _BUSY_HINT)
            case library.AuthenticationException() | library.AuthorizationException():
                what = "does not accept" if error.status_code == 401 else "gives too few rights to"
                return self._unavailable(f"it {what} the API key ({error.status_code})", _KEY_HINT)
            case library.NotFoundError():
                reason = self.reason(_body(error))
                return IndexGone(f"Elasticsearch at {self.address} misses something: {reason}", store=NAME)
            case library.ApiError():
                return self._refused(error)
            case library.SerializationError():
                message = f"The server at {self.address} does not answer as Elasticsearch does."
                return StoreMismatch(message, store=NAME, hint=_URL_HINT)
            case library.ConnectionTimeout():
                seconds = f"{self._timeout:g} s for a search, {self._write_timeout:g} s for writing"
                return self._unavailable(f"no answer in time ({seconds})", _URL_HINT)
            case library.SSLError():
                return self._unavailable(f"TLS failed: {error}", _TLS_HINT)
            case _:
                return self._unavailable(str(error), _URL_HINT)

    def _refused(self, error: Any) -> StoreMismatch | StoreUnavailable:
        reason = self.reason(_body(error))
        if "media_type_header" in str(error) or error.status_code == 406:
            # How a server answers to a client of the next major version.
            supported = re.search(r"version (\d+) or", reason)
            return self._other_version(f"{supported[1]}.x" if supported else f"{self._library.__version__[0] - 1}.x")
        if error.status_code in (408, 429) or error.status_code >= 500:
            return self._unavailable(f"{error.status_code}: {reason}", _BUSY_HINT)
        return StoreMismatch(
            f"Elasticsearch at {self.address} does not take this: {reason}",
            store=NAME,
            hint="Check the version of the server and the names of the indexes.",
        )

    def _unavailable(self, reason: str, hint: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"Elasticsearch at {self.address} cannot be used: {self._mask(reason)[:500]}", store=NAME, hint=hint
        )

    def _other_version(self, version: str) -> StoreMismatch:
        major = int(version.partition(".")[0])
        client = ".".join(map(str, self._library.__version__))
        pin = f"pip install 'elasticsearch>={major},<{major + 1}'"
        return StoreMismatch(
            f"Elasticsearch at {self.address} is version {version}, and the client {client} is for"
            f" {self._library.__version__[0]}.x: {pin}",
            store=NAME,
            hint=f"{pin}, or another server.",
        )

    def _mask(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _open(self, api_key: str | None, ca_certs: Path | str | None, verify: bool) -> "Elasticsearch":
        tls: dict[str, Any] = {}
        if self._url.startswith("https:"):
            tls = {"verify_certs": verify, "ssl_show_warn": verify}
            if ca_certs is not None and verify:
                tls["ca_certs"] = str(ca_certs)
        try:
            if "ca_certs" in tls:
                ssl.create_default_context(cafile=tls["ca_certs"])  # the client would read it later, and blame the net
            return self._library.Elasticsearch(
                self._url,
                api_key=api_key,
                request_timeout=self._timeout,
                max_retries=_RETRIES,
                retry_on_timeout=False,
                retry_backoff_base=0.1,
                retry_backoff_cap=1.0,
                connections_per_node=16,
                **tls,
            )
        except (ValueError, TypeError) as error:
            raise self._unavailable(f"the address cannot be used: {error}", _URL_HINT) from None
        except OSError as error:  # also what `ssl` raises
            raise self._unavailable(f"the certificates cannot be used: {error}", _TLS_HINT) from error

    def _check_version(self) -> str:
        with self.translated():
            answer = self.client.info()
        try:
            version = str(answer["version"]["number"])
            major = int(version.partition(".")[0])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreMismatch(
                f"The server at {self.address} does not say its version.", store=NAME, hint=_URL_HINT
            ) from error
        if major != self._library.__version__[0]:
            raise self._other_version(version)
        return version


_SETTING = "ADAPTIVE_RAG_ELASTICSEARCH"
_URL_HINT = f"Check that the server runs and that {_SETTING}_URL is right, such as http://host:9200."
_KEY_HINT = f"Check {_SETTING}_API_KEY, and that this key may create, read and write the indexes."
_TLS_HINT = f"Check {_SETTING}_CA_CERTS: the file with the certificate authority of the server."
_BUSY_HINT = "Look at the health and the free disk space of the cluster, and try again."


def _password(url: str) -> str:
    user = _USER.search(url)
    return unquote(user[1]).partition(":")[2] if user else ""


def _body(error: Any) -> Mapping[str, Any]:
    """What the server answered, where it was JSON."""
    return error.body if isinstance(error.body, Mapping) else {"error": str(error.body or error)}
