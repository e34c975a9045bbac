"""An open-loop generator: events leave on schedule, whatever becomes of the earlier ones."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

import msgspec
import numpy as np

from benchmarks.load import FIELDS, START_MS, Publisher

TICK_S: Final = 0.001
LINGER_MS: Final = 5
"""The default of Kafka's clients. With 1 ms the broker gets 8,000 requests a second of one or two events each."""
SHAPES: Final = 1_000
"""Different feature rows that the generator repeats: it must cost little beside the worker that it feeds."""
END_S: Final = 30.0


class Generator:
    """A generator in its own process. Each event's id ends with the time at which it was due: monotonic, in ns."""

    def __init__(self, process: multiprocessing.process.BaseProcess, report: Connection) -> None:
        self._process = process
        self._report = report

    @property
    def running(self) -> bool:
        """Whether it still sends."""
        return self._process.is_alive()

    def lateness_ms(self, within_s: float = END_S) -> float:
        """How far behind its schedule it sent, 99th percentile. Waits for its end; raises EOFError if it failed."""
        if not self._report.poll(within_s):
            raise TimeoutError(f"the generator did not end within {within_s:.0f} s")
        late: float = self._report.recv()
        return late


@contextmanager
def generator(bootstrap: str, topic: str, sessions: int, rate: int, seconds: float) -> Iterator[Generator]:
    """Sends `rate` events a second over `sessions` sessions for `seconds`, from now."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_generate, args=(bootstrap, topic, sessions, rate, seconds, there), daemon=True)
    process.start()
    there.close()
    try:
        yield Generator(process, here)
    finally:
        process.terminate()
        process.join()


def due_ns(identifier: str) -> int:
    """When the event with this id was due."""
    return int(identifier.rpartition("-")[2])


def _generate(bootstrap: str, topic: str, sessions: int, rate: int, seconds: float, report: Connection) -> None:
    draw = np.random.default_rng(11)
    rows = draw.standard_normal((SHAPES, len(FIELDS))).round(4).tolist()
    shapes = [msgspec.json.encode(dict(zip(FIELDS, row, strict=True))) for row in rows]
    total = int(rate * seconds)
    chosen = draw.integers(sessions, size=total).tolist()
    publisher = Publisher(bootstrap, linger_ms=LINGER_MS)
    late: list[int] = []
    sent, start = 0, time.monotonic_ns()
    while sent < total:
        now = time.monotonic_ns()
        until = min(total, (now - start) * rate // 1_000_000_000 + 1)
        for n in range(sent, until):
            due = start + n * 1_000_000_000 // rate
            late.append(now - due)
            session = chosen[n]
            value = b'{"id":"l%d-%d","session":"s%d","ts":%d,"features":%b}'
            publisher.send(topic, b"s%d" % session, value % (n, due, session, START_MS + n, shapes[n % SHAPES]))
        sent = until
        time.sleep(TICK_S)
    publisher.flush()
    report.send(float(np.percentile(late, 99)) / 1e6)
