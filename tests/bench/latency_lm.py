"""A language model server for measurements: a process of its own, one fixed time per reply, no threads.

    with latency_lm(seconds=0.2) as lm:
        settings = Settings(lm=lm.line)

`scripted_lm` lives in the process of whoever asks and gives each connection a thread: what the server costs
would be counted as the client's. This one answers from an event loop in another process. Its clock is the
machine's monotonic one, so that the times it notes can be compared with those of the process that asks.

It can also be run by itself: `python latency_lm.py` prints its port and ends with its standard input.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from loop_questions import reply_to
from scripted_lm import Call, completion

PATH = "/v1/chat/completions"
KEPT_BODIES = 64
ANY_NUMBER = 100_000
"""Replies at once of a server without a limit."""
Span = tuple[float, float]


@dataclass
class _State:
    """What the server does and what it has seen."""

    seconds: float = 0.0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ANY_NUMBER))
    calls: list[tuple[str, float, float]] = field(default_factory=list)
    bodies: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT_BODIES))

    def control(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Change latency and slots, give what was seen, forget it."""
        seen = {"calls": self.calls, "bodies": [body.decode() for body in self.bodies]}
        self.calls = []
        if "seconds" in wanted:
            self.seconds = wanted["seconds"]
            self.slots = asyncio.Semaphore(wanted["slots"] or ANY_NUMBER)
        return seen

    async def complete(self, data: bytes) -> dict[str, Any]:
        """One reply, `seconds` after one of the slots was free."""
        arrived = time.monotonic()
        body = json.loads(data)
        call = Call(body, {})
        payload = completion(reply_to(call), body)
        self.bodies.append(data)
        async with self.slots:
            await asyncio.sleep(self.seconds)
        self.calls.append((call.input("question"), arrived, time.monotonic()))
        return payload

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                data = await reader.readexactly(_length(head))
                wanted = head.split(b" ", 2)[1] == PATH.encode()
                payload = await self.complete(data) if wanted else self.control(json.loads(data))
                text = json.dumps(payload).encode()
                start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
                writer.write(start + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()  # the client has gone, or the server ends


@dataclass(frozen=True)
class LatencyLM:
    """A running server, as the process sees it that started it."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def line(self) -> str:
        """For `ADAPTIVE_RAG_LM`: the client holds nothing back, the server's slots are the limit."""
        return f"scripted@{self.url}?concurrency=4096&timeout=600"

    def set(self, *, seconds: float, slots: int = 0) -> None:
        """From now on a reply takes `seconds`, and at most `slots` (0 is any number) are written at once."""
        self._control(seconds=seconds, slots=slots)

    def calls(self) -> dict[str, list[Span]]:
        """When replies were in the making, by question, since the last time that somebody asked."""
        spans: dict[str, list[Span]] = {}
        for question, start, end in self._control()["calls"]:
            spans.setdefault(question, []).append((start, end))
        return spans

    def bodies(self) -> list[bytes]:
        """Requests of late, as they came."""
        return [body.encode() for body in self._control()["bodies"]]

    def _control(self, **wanted: Any) -> dict[str, Any]:
        seen: dict[str, Any] = httpx.post(f"http://127.0.0.1:{self.port}/control", json=wanted, trust_env=False).json()
        return seen


@contextmanager
def latency_lm(*, seconds: float) -> Iterator[LatencyLM]:
    """Start a server; stops at the end of the block."""
    command = [sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            lm = LatencyLM(int(process.stdout.readline()))
            lm.set(seconds=seconds)
            yield lm
        finally:
            process.stdin.close()  # it ends when nobody can start it any more
            process.wait()


async def bare_client(lm: LatencyLM, bodies: Sequence[bytes], *, calls: int, in_flight: int) -> float:
    """Seconds that a client without anything around it needs for `calls` replies, `in_flight` at once."""
    rest = iter(range(calls))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", lm.port)
        for number in rest:
            body = bodies[number % len(bodies)]
            writer.write(b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
            json.loads(await reader.readexactly(_length(await reader.readuntil(b"\r\n\r\n"))))
        writer.close()

    start = time.monotonic()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return time.monotonic() - start


def covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of the spans runs."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.start_server(_State().serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
