"""The embedded language model: llama.cpp in this process, as an OpenAI-compatible server on loopback.

A server, although caller and model share a process, because then there is one code path for every
language model. It listens on 127.0.0.1 only, at a random port, and wants a random key.
"""

import atexit
import gc
import json
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from programs.errors import LanguageModelError, ModelFileError
from programs.model_files import ensure_model, known_model

CACHE_MIB = 1024
"""Host memory for evaluated prompts: the instructions of every role and the passages of a hop."""
_EXPLAIN_SECONDS = 60
_BREAK_OFF_SECONDS = 10.0
_BUSY = re.compile(r"requests_(?:processing|deferred) (\d+)")
_MEMORY_HINT = "It needs about 2 GB of free memory; `local:qwen2.5-coder-0.5b` needs a third of that."


class LocalServer:
    """A running server.

    Attributes:
        base_url: Address ending in /v1.
        api_key: What it wants as bearer token.
        model_name: Name of the weights with their quantisation, as in /v1/models.
    """

    def __init__(self, server: Any, api_key: str, model_name: str) -> None:
        self._server = server
        self.api_key = api_key
        self.model_name = model_name
        self.base_url = f"{server.listening_address}/v1"

    @property
    def closed(self) -> bool:
        return self._server is None

    def close(self) -> None:
        """Break off what is in flight, stop and free the memory; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            _break_off(server)
            # The binding has no close(): the last reference is what keeps the server running.
            del server
            gc.collect()


def start_local_server(
    model_path: Path, *, context: int = 8192, slots: int = 1, threads: int | None = None
) -> LocalServer:
    """Load a GGUF file and serve it.

    Args:
        model_path: The file.
        context: Tokens of prompt and reply together, for each request.
        slots: Requests evaluated at once; they share `context`.
        threads: CPU threads; all cores that this process may use when None.

    Raises:
        ModelFileError: There is no such file, or it is no GGUF file.
        LanguageModelError: llama.cpp cannot load it; the message says why.
    """
    import xllamacpp

    _check_is_gguf(model_path)
    key = secrets.token_urlsafe(24)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_path)
    parameters.model_alias = {model_path.stem}
    parameters.n_ctx = context
    parameters.n_parallel = slots
    parameters.kv_unified = True
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads or _cores()
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [key]
    parameters.cache_ram_mib = CACHE_MIB
    parameters.verbosity = 0
    parameters.endpoint_metrics = True
    # With templates in Jinja, llama.cpp allows fences and white space around JSON and ignores number
    # ranges; without, llguidance enforces the whole schema.
    parameters.use_jinja = False
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        cause = _explain(model_path, context, slots)
        memory = not cause or "alloc" in cause or "memory" in cause
        raise LanguageModelError(
            f"llama.cpp cannot load {model_path.name}: {cause or error}",
            kind="server",
            hint=_MEMORY_HINT if memory else "",
        ) from error
    # The constructor returns before the server's loop runs, and a server that is dropped before then
    # never ends: it waits for a loop that has missed the word to stop. The loop must have answered once.
    server.handle_metrics()
    return LocalServer(server, key, model_path.stem)


def _break_off(server: Any) -> None:
    """End the requests in flight.

    A server that is dropped waits for them, although nobody evaluates them any more, and holds the
    interpreter's lock meanwhile, so that nobody can give them up either. Without its connection, a
    request ends within a second.
    """
    port = urlsplit(server.listening_address).port
    deadline = time.monotonic() + _BREAK_OFF_SECONDS
    while time.monotonic() < deadline:
        _shut_connections(port)
        busy = _BUSY.findall(str(server.handle_metrics()))
        if not any(int(count) for count in busy):
            break
        time.sleep(0.05)


def _shut_connections(port: int | None) -> None:
    """Shut the connections that this process has accepted at a port; the listening socket stays."""
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return  # Windows has no such folder
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile, or listening
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family == socket.AF_INET and connection.getsockname()[1] == port:
                        connection.getpeername()
                        connection.shutdown(socket.SHUT_RDWR)


def _check_is_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelFileError(f"{path} is no GGUF file.", hint="llama.cpp reads weights in GGUF files only.")


def _explain(path: Path, context: int, slots: int) -> str:
    """Why llama.cpp cannot load a file, in its own words; "" when it does not say.

    It tells the cause only to its log, which goes to standard error; so it tries again in a process of
    which nobody sees the standard error.
    """
    script = (
        "import json, os, sys, xllamacpp\n"
        "path, context, slots = json.loads(sys.argv[1])\n"
        "parameters = xllamacpp.CommonParams()\n"
        "parameters.model.path, parameters.n_ctx, parameters.n_parallel = path, context, slots\n"
        "parameters.hostnames, parameters.port, parameters.verbosity = ['127.0.0.1'], 0, 1\n"
        "server = xllamacpp.Server(parameters)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, json.dumps([str(path), context, slots])]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_EXPLAIN_SECONDS,
            check=False,
        ).stderr
    except (subprocess.TimeoutExpired, OSError):
        return ""
    # Lines of errors read "0.00.007.923 E where: what"; the first is the cause, the others follow from it.
    return next((line.partition(" E ")[2].strip() for line in said.splitlines() if " E " in line), "")


_servers: dict[tuple[str, int, int], LocalServer] = {}
def _cores() -> int:
    # More threads than cores wait for each other in loops: with two on one core a reply takes ten times as long.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_lock = threading.Lock()


def get_local_server(
    name: str, *, directory: Path, path: Path | None = None, hub: str = "", context: int = 8192, slots: int = 1
) -> LocalServer:
    """The process-wide server of an embedded model, started at the first call and after it was closed.

    Raises:
        ModelFileError, SettingsError, LanguageModelError.
    """
    model_path = ensure_model(known_model(name), directory=directory, path=path, hub=hub)
    key = (str(model_path), context, slots)
    with _lock:
        server = _servers.get(key)
        if server is None or server.closed:
            server = _servers[key] = start_local_server(model_path, context=context, slots=slots)
        return server


@atexit.register
def close_local_servers() -> None:
    """Stop all servers: a process must not wait at its end for threads of llama.cpp."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
