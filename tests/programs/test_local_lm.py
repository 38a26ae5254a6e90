"""The embedded language model, really run (the small one)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from programs.errors import LanguageModelError
from programs.local_lm import LocalServer, get_local_server, start_local_server
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
    payload = {"messages": messages, "max_tokens": 40, "temperature": 0, **body}
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


def test_two_roles_share_one_server(server: LocalServer) -> None:
    settings = load_settings()
    assert get_local_server("qwen2.5-coder-0.5b", directory=settings.models_dir, hub="", context=2048) is server


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF nothing")
    with pytest.raises(LanguageModelError, match=r"no\.gguf"):
        start_local_server(tmp_path / "no.gguf")


def test_a_process_that_dies_with_the_server_up_still_exits() -> None:
    code = (
        "from programs.settings import load_settings\n"
        "from programs.local_lm import get_local_server\n"
        "get_local_server('qwen2.5-coder-0.5b', directory=load_settings().models_dir, hub='', context=512)\n"
        "raise ValueError('on purpose')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "on purpose" in ended.stderr
