"""An open loop of GETs: requests are due on schedule, whatever becomes of the earlier ones."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import time
from collections import deque
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import urlsplit

import numpy as np

TICK_S: Final = 0.001
CONNECTIONS: Final = 32
"""More requests than this don't wait at the server but at ours, and count from when they were due all the same."""
END_S: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\nContent-Length: (\d+)\r\n", re.IGNORECASE)


class Getter:
    """GETs in a process of their own, inside a `with` block, which ends when they do."""

    def __init__(self, url: str, path: str, keys: int, rate: int, seconds: float) -> None:
        """path holds one %d, which becomes each of `keys` numbers."""
        spawn = multiprocessing.get_context("spawn")
        self._report, there = spawn.Pipe(duplex=False)
        self._process = spawn.Process(target=_get_all, args=(url, path, keys, rate, seconds, there), daemon=True)
        self._there = there
        self.taken_ms = np.empty(0)
        """From when each request was due until its answer was read whole; known after the block."""

    def __enter__(self) -> Self:
        self._process.start()
        self._there.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Raises EOFError if they failed, as they do at the first answer that isn't 200."""
        try:
            if kind is None:
                if not self._report.poll(END_S):
                    raise TimeoutError(f"the GETs did not end within {END_S:.0f} s")
                self.taken_ms = self._report.recv()
        finally:
            self._process.terminate()
            self._process.join()


class _Line(asyncio.Protocol):
    """A connection that has one request under way at a time."""

    def __init__(self, idle: deque[_Line], taken: list[int]) -> None:
        self._idle = idle
        self._taken = taken
        self._due = 0
        self._got = b""
        self.failed: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._idle.append(self)

    def ask(self, request: bytes, due: int) -> None:
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, gap, body = self._got.partition(b"\r\n\r\n")
        if not gap:
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.failed = head.splitlines()[0].decode()
            return
        length = _LENGTH.search(head + b"\r\n")
        if length is not None and len(body) >= int(length[1]):
            self._got = b""
            self._taken.append(time.monotonic_ns() - self._due)
            self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed = self.failed or "the worker closed a connection"


def _get_all(url: str, path: str, keys: int, rate: int, seconds: float, report: Connection) -> None:
    import uvloop

    uvloop.run(_paced(url, path, keys, rate, seconds, report))


async def _paced(url: str, path: str, keys: int, rate: int, seconds: float, report: Connection) -> None:
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    total, draw = int(rate * seconds), np.random.default_rng(5)
    chosen = draw.integers(keys, size=total).tolist()
    idle: deque[_Line] = deque()
    taken: list[int] = []
    loop = asyncio.get_running_loop()
    lines = [(await loop.create_connection(lambda: _Line(idle, taken), host, port))[1] for _ in range(CONNECTIONS)]
    asked, start = 0, time.monotonic_ns()
    while len(taken) < total:
        until = min(total, (time.monotonic_ns() - start) * rate // 1_000_000_000 + 1)
        while asked < until and idle:
            request = f"GET {path % chosen[asked]} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
            idle.popleft().ask(request, start + asked * 1_000_000_000 // rate)
            asked += 1
        for line in lines:
            if line.failed is not None:
                raise ConnectionError(line.failed)
        await asyncio.sleep(TICK_S)
    report.send(np.array(taken) / 1e6)
