"""The embedded language model, really run (the small one)."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from programs.errors import LanguageModelError, ModelFileError
from programs.local_lm import LocalServer, get_local_server, start_local_server
from programs.model_files import known_model
from programs.settings import load_settings

pytestmark = pytest.mark.model
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> LocalServer:
    settings = load_settings()
    return get_local_server("qwen2.5-coder-0.5b", directory=settings.models_dir, hub="", context=2048)


def ask(server: LocalServer, key: str | None, **body: object) -> httpx.Response:
    messages = [{"role": "user", "content": "写出颜色 green，用 JSON。"}]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    payload = {"messages": messages, "max_tokens": 20, "temperature": 0, **body}
    return httpx.post(f"{server.base_url}/chat/completions", json=payload, headers=headers, timeout=60)


def test_it_listens_on_loopback_and_wants_its_key(server: LocalServer) -> None:
    assert server.base_url.startswith("http://127.0.0.1:")
    assert ask(server, None).status_code == 401
    assert ask(server, "wrong").status_code == 401
    assert ask(server, server.api_key).status_code == 200


def test_a_schema_that_contradicts_the_prompt_is_enforced(server: LocalServer) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "number": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["colour", "number"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
    reply = ask(server, server.api_key, response_format=wanted, logprobs=True, top_logprobs=5).json()
    choice = reply["choices"][0]
    said = json.loads(choice["message"]["content"])
    assert said["colour"] in ("red", "blue")
    assert 3 <= said["number"] <= 5
    assert choice["logprobs"]["content"][0]["top_logprobs"]


def test_the_name_says_which_weights_and_shows_no_folder(server: LocalServer) -> None:
    assert server.model_name == "qwen2.5-coder-0.5b-instruct-q4_k_m"
    listed = httpx.get(f"{server.base_url}/models", headers={"Authorization": f"Bearer {server.api_key}"}).json()
    assert [model["id"] for model in listed["data"]] == [server.model_name]


def test_two_roles_share_one_server(server: LocalServer) -> None:
    settings = load_settings()
    options = {"directory": settings.models_dir, "hub": "", "context": 2048}
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: get_local_server("qwen2.5-coder-0.5b", **options), range(4)))
    assert {id(other) for other in servers} == {id(server)}


def test_a_request_that_is_alone_has_the_whole_context_of_two_slots() -> None:
    model = load_settings().models_dir / known_model("qwen2.5-coder-0.5b").file_name
    server = start_local_server(model, context=1024, slots=2)
    try:
        long = [{"role": "user", "content": "green " * 700}]
        assert ask(server, server.api_key, messages=long).status_code == 200
        too_long = ask(server, server.api_key, messages=[{"role": "user", "content": "green " * 1100}]).json()
        assert too_long["error"]["type"] == "exceed_context_size_error"
    finally:
        server.close()


def test_a_closed_server_frees_its_port_and_is_started_again_when_it_is_wanted() -> None:
    options = {"directory": load_settings().models_dir, "hub": "", "context": 256}
    first = get_local_server("qwen2.5-coder-0.5b", **options)
    first.close()
    first.close()
    with pytest.raises(httpx.ConnectError):
        ask(first, first.api_key)
    second = get_local_server("qwen2.5-coder-0.5b", **options)
    try:
        assert ask(second, second.api_key, max_tokens=1).status_code == 200
    finally:
        second.close()


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"GGUF nothing", LanguageModelError, r"no\.gguf: gguf_init_from_reader: .*version"),
        (b"<html>log in</html>", ModelFileError, r"no\.gguf is no GGUF file"),
        (None, ModelFileError, r"no\.gguf cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_model_is_named_with_the_cause(
    tmp_path: Path, content: bytes | None, error: type[Exception], said: str
) -> None:
    if content is not None:
        (tmp_path / "no.gguf").write_bytes(content)
    with pytest.raises(error, match=said):
        start_local_server(tmp_path / "no.gguf")


START = """
from programs.settings import load_settings
from programs.local_lm import get_local_server
server = get_local_server('qwen2.5-coder-0.5b', directory=load_settings().models_dir, hub='', context=512)
"""
IN_FLIGHT = """
import threading, time
import httpx
body = {'messages': [{'role': 'user', 'content': 'count to 1000'}], 'max_tokens': 400, 'stream': True}
headers = {'Authorization': f'Bearer {server.api_key}'}
begun = threading.Event()
def request():
    url = f'{server.base_url}/chat/completions'
    with httpx.stream('POST', url, json=body, headers=headers, timeout=60) as reply:
        for line in reply.iter_lines():
            begun.set()
threading.Thread(target=request, daemon=True).start()
assert begun.wait(30)
"""


@pytest.mark.parametrize("before", ["", "", "", IN_FLIGHT], ids=["1", "2", "3", "request in flight"])
def test_a_process_that_dies_with_the_server_up_still_exits(before: str) -> None:
    """Several times: a server that was dropped before its loop ran hung one process in four."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", f"{START}{before}\nraise ValueError('on purpose')"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "on purpose" in ended.stderr
