"""The embedded language model: llama.cpp in this process, as an OpenAI-compatible server on loopback.

A server, although caller and model share a process, because then there is one code path for every
language model. It listens on 127.0.0.1 only, at a random port, and wants a random key.
"""

import atexit
import gc
import os
import secrets
import threading
from pathlib import Path
from typing import Any

from programs.errors import LanguageModelError
from programs.model_files import ensure_model, known_model

CACHE_MIB = 1024
"""Host memory for evaluated prompts: the instructions of every role and the passages of a hop."""


class LocalServer:
    """A running server.

    Attributes:
        base_url: Address ending in /v1.
        api_key: What it wants as bearer token.
    """

    def __init__(self, server: Any, api_key: str) -> None:
        self._server = server
        self.api_key = api_key
        self.base_url = f"{server.listening_address}/v1"

    def close(self) -> None:
        """Stop and free the memory; may be called twice."""
        # llama.cpp's binding has no close(): the last reference is what keeps it running.
        self._server = None
        gc.collect()


def start_local_server(
    model_path: Path, *, context: int = 8192, slots: int = 1, threads: int | None = None
) -> LocalServer:
    """Load a GGUF file and serve it.

    Args:
        model_path: The file.
        context: Tokens of prompt and reply together, for each request.
        slots: Requests evaluated at once; they share `context`.
        threads: CPU threads; all cores when None.

    Raises:
        LanguageModelError: llama.cpp cannot load it.
    """
    import xllamacpp

    key = secrets.token_urlsafe(24)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_path)
    parameters.n_ctx = context
    parameters.n_parallel = slots
    parameters.kv_unified = True
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads or os.cpu_count() or 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [key]
    parameters.cache_ram_mib = CACHE_MIB
    parameters.verbosity = 0
    # With templates in Jinja, llama.cpp allows fences and white space around JSON and ignores number
    # ranges; without, llguidance enforces the whole schema.
    parameters.use_jinja = False
    try:
        return LocalServer(xllamacpp.Server(parameters), key)
    except RuntimeError as error:
        raise LanguageModelError(
            f"llama.cpp cannot load {model_path.name}: {error}",
            kind="server",
            hint="It needs about 2 GB of free memory; `local:qwen2.5-coder-0.5b` needs a third of that.",
        ) from error


_servers: dict[tuple[str, int, int], LocalServer] = {}
_lock = threading.Lock()


def get_local_server(
    name: str, *, directory: Path, path: Path | None = None, hub: str = "", context: int = 8192, slots: int = 1
) -> LocalServer:
    """The process-wide server of an embedded model, started at the first call.

    Raises:
        ModelFileError, SettingsError, LanguageModelError.
    """
    model_path = ensure_model(known_model(name), directory=directory, path=path, hub=hub)
    key = (str(model_path), context, slots)
    with _lock:
        if key not in _servers:
            _servers[key] = start_local_server(model_path, context=context, slots=slots)
        return _servers[key]


@atexit.register
def close_local_servers() -> None:
    """Stop all servers: a process must not wait at its end for threads of llama.cpp."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
