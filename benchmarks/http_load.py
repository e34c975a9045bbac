"""An open loop of GETs: requests are due on schedule, whatever becomes of the earlier ones."""

from __future__ import annotations

import multiprocessing
import re
import select
import socket
import time
from collections import deque
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import numpy as np

TICK_S: Final = 0.001
"""Requests leave and answers are taken so often: to wake for each of them would cost more than they do. What that adds
to an answer's time is counted."""
CONNECTIONS: Final = 32
"""More requests than this don't wait at the server but at ours, and count from when they were due all the same."""
END_S: Final = 30.0
READ: Final = 64 << 10
GOOD: Final = b"HTTP/1.1 200 "
END: Final = b"\r\n\r\n"
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
        """From when each request was due until its answer was read whole, in the order in which they were due; known
        after the block."""

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


class _Line:
    """A connection that has one request under way at a time: no event loop, which would cost more than the request."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._got = b""
        self.due = 0
        """When its request was, in monotonic ns."""

    def fileno(self) -> int:
        """As the system knows it."""
        return self._socket.fileno()

    def ask(self, request: bytes, due: int) -> None:
        """Sends a request."""
        self.due = due
        self._socket.sendall(request)

    def answered(self) -> bool:
        """Whether the answer is here, all of it. Raises ConnectionError where it isn't 200."""
        more = self._socket.recv(READ)
        if not more:
            raise ConnectionError("the worker closed a connection")
        self._got += more
        end = self._got.find(END)
        if end < 0:
            return False
        if not self._got.startswith(GOOD):
            raise ConnectionError(self._got[: self._got.index(b"\r\n")].decode())
        length = _LENGTH.search(self._got, 0, end + 2)
        whole = length is not None and len(self._got) - end - len(END) >= int(length[1])
        if whole:
            self._got = b""
        return whole


def _get_all(url: str, path: str, keys: int, rate: int, seconds: float, report: Connection) -> None:
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    requests = [f"GET {path % key} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() for key in range(keys)]
    total, draw = int(rate * seconds), np.random.default_rng(5)
    chosen = draw.integers(keys, size=total).tolist()
    lines = {line.fileno(): line for line in (_Line((host, port)) for _ in range(CONNECTIONS))}
    idle, poll = deque(lines.values()), select.epoll(CONNECTIONS)
    for number in lines:
        poll.register(number, select.EPOLLIN)
    taken: list[tuple[int, int]] = []
    asked, start = 0, time.monotonic_ns()
    while len(taken) < total:
        until = min(total, (time.monotonic_ns() - start) * rate // 1_000_000_000 + 1)
        while asked < until and idle:
            idle.popleft().ask(requests[chosen[asked]], start + asked * 1_000_000_000 // rate)
            asked += 1
        time.sleep(TICK_S)
        for number, _ in poll.poll(0):
            line = lines[number]
            if line.answered():
                taken.append((line.due, time.monotonic_ns() - line.due))
                idle.append(line)
    taken.sort()
    report.send(np.array(taken)[:, 1] / 1e6)
