"""Recordings as JSON Lines that survive a kill: the line that it cut is left out, and the next one is whole."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, value: Mapping[str, Any]) -> None:
    """Add one line; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file, in order; none where there is no file."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # cut by a kill, perhaps within a character
        if isinstance(value, dict):
            yield value
