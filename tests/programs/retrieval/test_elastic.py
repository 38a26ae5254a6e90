"""A real Elasticsearch keeps the promises of `base.py`, and its failures have names."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from conformance import DIMENSION, DenseConformance, TextConformance, row, unit, vector_of

from programs.errors import StoreError, StoreMismatch, StoreUnavailable
from programs.retrieval.elastic import ElasticDenseStore, ElasticTextStore

START = Path(__file__).resolve().parents[4] / "shared" / "elasticsearch" / "start"
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        not START.is_file() and not os.environ.get("ELASTICSEARCH_URL"),
        reason="no Elasticsearch: set ELASTICSEARCH_URL to one that may be written to",
    ),
]
_numbers = count()


class Node:
    """A node on loopback that can be killed and started again with the same data."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with (self.folder / "log").open("ab") as log:
            command = [str(START), str(self.port), str(self.folder / "data"), "256m"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/_cluster/health?wait_for_status=yellow", timeout=5) as reply:
                    assert reply.status == 200
                    return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.3)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if url := os.environ.get("ELASTICSEARCH_URL"):
        given = Node.__new__(Node)
        given.url = url
        yield given
        return
    folder = tmp_path_factory.mktemp("elastic")
    started = Node(folder)
    yield started
    started.kill()
    shutil.rmtree(folder, ignore_errors=True)


class TestElasticTextConformance(TextConformance):
    @pytest.fixture
    def open_store(self, node: Node) -> Iterator[Callable[[], ElasticTextStore]]:
        index, opened = f"text-{next(_numbers)}", []

        def open_it() -> ElasticTextStore:
            opened.append(ElasticTextStore(node.url, index=index))
            return opened[-1]

        yield open_it
        ElasticTextStore(node.url, index=index).clear()
        for store in opened:
            store.close()


class TestElasticDenseConformance(DenseConformance):
    @pytest.fixture
    def open_store(self, node: Node) -> Iterator[Callable[[], ElasticDenseStore]]:
        index, opened = f"dense-{next(_numbers)}", []

        def open_it() -> ElasticDenseStore:
            opened.append(ElasticDenseStore(node.url, index=index, dimension=DIMENSION, embedder="test"))
            return opened[-1]

        yield open_it
        ElasticDenseStore(node.url, index=index, dimension=DIMENSION, embedder="test").clear()
        for store in opened:
            store.close()

    def test_scores_are_cosines_and_fall_strictly(self, store: ElasticDenseStore) -> None:
        """As in the suite, but after a flush, as nothing is promised before, and with eight bits a number."""
        rows = [row(name, name) for name in ("same", "near", "orthogonal", "opposite")]
        vectors = np.stack([unit(1, 0), unit(1, 0.5), unit(0, 1), unit(-1, 0)])
        store.upsert(rows, vectors)
        store.flush()
        matches = store.search(unit(1, 0), top_k=10)
        assert [match.row_id for match in matches] == ["same", "near", "orthogonal", "opposite"]
        assert [match.score for match in matches] == pytest.approx([1.0, 0.894427, 0.0, -1.0], abs=0.01)


def test_an_index_of_another_embedder_is_refused_and_can_be_cleared(node: Node) -> None:
    first = ElasticDenseStore(node.url, index="embedders", dimension=DIMENSION, embedder="one")
    first.upsert([row("a", "x")], vector_of("x")[None, :])
    second = ElasticDenseStore(node.url, index="embedders", dimension=DIMENSION, embedder="two")
    with pytest.raises(StoreMismatch, match="one") as raised:
        second.search(vector_of("x"), top_k=1)
    assert "--rebuild" in raised.value.hint
    second.clear()
    second.upsert([row("a", "x")], vector_of("x")[None, :])
    second.flush()
    assert second.count() == 1


@pytest.mark.skipif(not START.is_file(), reason="only a node that this test started may be killed")
def test_a_dead_node_is_an_outage_and_a_restarted_one_has_its_rows(node: Node) -> None:
    store = ElasticTextStore(node.url, index="outage", timeout=3.0)
    store.upsert([row("a", "退货，运费由买家承担")])
    store.flush()
    node.kill()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.search("退货", top_k=1)
    assert time.monotonic() - started < 10
    node.start()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert [match.row_id for match in store.search("退货", top_k=1)] == ["a"]
            return
        except StoreUnavailable:  # its shards are still starting, and that is said
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def fake() -> Iterator[Callable[[int, dict[str, object]], str]]:
    """An address that answers everything in one way, like a server of another version or a wrong login."""
    servers = []

    def start(status: int, body: dict[str, object]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_HEAD = do_POST = do_PUT = answer

            def log_message(self, *arguments: object) -> None:
                """Silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "kind", "hint"),
    [
        (200, {"version": {"number": "8.13.0"}}, StoreMismatch, "pip install 'elasticsearch>=8,<9'"),
        (400, {"error": {"type": "media_type_header_exception"}}, StoreMismatch, "pip install 'elasticsearch>=8,<9'"),
        (401, {"error": {"type": "security_exception"}}, StoreUnavailable, "ADAPTIVE_RAG_ELASTICSEARCH_API_KEY"),
        (503, {"error": {"type": "overloaded"}}, StoreUnavailable, "ADAPTIVE_RAG_ELASTICSEARCH_URL"),
    ],
)
def test_another_version_and_a_wrong_login_say_what_to_do(
    fake: Callable[[int, dict[str, object]], str], status: int, body: dict[str, object], kind: type[StoreError], hint: str
) -> None:
    store = ElasticTextStore(fake(status, body), index="x", api_key="c2stQ0FOQVJZOngxMjM=", timeout=3.0)
    with pytest.raises(kind) as raised:
        store.count()
    assert hint in raised.value.hint
    assert "CANARY" not in str(raised.value) + raised.value.hint
    assert "c2stQ0" not in str(raised.value) + raised.value.hint


def test_an_address_without_scheme_is_named() -> None:
    with pytest.raises(StoreMismatch, match="address"):
        ElasticTextStore("localhost:9200", index="x")
