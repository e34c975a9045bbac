"""Half an hour of 5,000 events a second: memory, handles, threads and latency are at the end what they were after the
warm-up, and every answer is there once and right.

SOAK_S and SOAK_RATE change duration and rate. Nothing here grows with the number of events: each session's events are
known by their number, and the reader keeps where each session is.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import threading
import time
from array import array
from typing import Any, Final, NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer

from tests import tally
from tests.rig import Rig
from tests.stream import EPOCH_MS, Publisher, Running, Sent, observation
from tests.worker import Worker

logger = logging.getLogger(__name__)

DURATION_S: Final = float(os.environ.get("SOAK_S", "1800"))
RATE: Final = float(os.environ.get("SOAK_RATE", "5000"))
SESSIONS: Final = max(500, int(DURATION_S * RATE / 1000))
"""About 1,000 events each: the scores tell counts below 4,096 exactly."""
WARM_UP: Final = 0.25
"""Of the duration."""
GROWTH: Final = 1.05
"""Of memory, between the first and the last third after the warm-up."""
LOOK_S: Final = 1.0


class Figures(NamedTuple):
    """What the worker's process has at one moment."""

    at_s: float
    rss_mb: float
    handles: int
    threads: int


def event(number: int) -> Sent:
    """The events, by number: sessions in turn."""
    return Sent(f"e{number}", f"s{number % SESSIONS}", EPOCH_MS + number, float(number * 7 // 3 % 4))


class Load:
    """Sends from a thread, and knows when it sent what."""

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self.sent_at = array("d")
        self._publisher = publisher
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._publisher.flush()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            number = len(self.sent_at)
            one = event(number)
            self.sent_at.append(time.monotonic())
            self._publisher.send(self._topic, one.session.encode(), observation(one))
            ahead = began + (number + 1) / RATE - time.monotonic()
            if ahead > 0.005:
                self._stop.wait(ahead)


class Judge:
    """Reads predictions as they are committed: each must be the next of its session, and show its state."""

    def __init__(self, rig: Rig, load: Load) -> None:
        self.read = 0
        self.latencies: list[tuple[float, float]] = []
        """When read, and how long after it was sent: every tenth."""
        self._load = load
        self._states: dict[str, Running] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": rig.broker.bootstrap,
                "group.id": rig.topic("judge"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.subscribe([rig.topic("predictions")])

    def look(self, seconds: float) -> None:
        """Reads for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for message in self._consumer.consume(2000, min(left, 0.05)):
                assert message.error() is None, message.error()
                self._judge(json.loads(message.value() or b""), time.monotonic())

    def close(self) -> None:
        self._consumer.close()

    def _judge(self, prediction: dict[str, Any], now: float) -> None:
        session = prediction["session"]
        state = self._states.setdefault(session, Running())
        number = state.count * SESSIONS + int(session[1:])
        expected = event(number)
        assert prediction["event_id"] == expected.id, f"after {state.count} events of {session}: {prediction}"
        state.add(expected.f0)
        got = tally.decode(prediction)
        assert abs(got["count"] - state.count) < 1e-3, f"{prediction}, recount {state}"
        assert abs(got["sum"] - state.total) < 1e-3, f"{prediction}, recount {state}"
        self.read += 1
        if self.read % 10 == 0:
            self.latencies.append((now, now - self._load.sent_at[number]))


@pytest.mark.long
@pytest.mark.timeout(DURATION_S + 300)
def test_nothing_grows_in_a_long_run(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    figures: list[Figures] = []
    with Load(rig.publisher, rig.topic("observations")) as load:
        judge = Judge(rig, load)
        began = time.monotonic()
        while time.monotonic() < began + DURATION_S:
            judge.look(LOOK_S)
            figures.append(look_at(worker, time.monotonic() - began))
    while judge.read < len(load.sent_at):
        before = judge.read
        judge.look(20)
        assert judge.read > before, f"{judge.read} of {len(load.sent_at)} answers, and no more within 20 s"
    judge.look(2)  # one too many would come now
    judge.close()
    assert judge.read == len(load.sent_at)
    rig.terminate()

    warm = figures[int(WARM_UP * len(figures)) :]
    third = len(warm) // 3
    first, last = warm[:third], warm[-third:]
    moments = [began + part.at_s for part in (first[0], first[-1], last[0])]
    early = sorted(took for at, took in judge.latencies if moments[0] <= at < moments[1])
    late = sorted(took for at, took in judge.latencies if at >= moments[2])
    logger.warning(
        "%d events in %.0f s, first and last third after the warm-up: %.0f and %.0f MB, %.0f and %.0f handles, "
        "%.0f and %.0f threads, p50 %.0f and %.0f ms, p99 %.0f and %.0f ms",
        judge.read,
        DURATION_S,
        *(median(part, name) for name in ("rss_mb", "handles", "threads") for part in (first, last)),
        *(1e3 * quantile(part, share) for share in (0.5, 0.99) for part in (early, late)),
    )
    assert median(last, "rss_mb") <= GROWTH * median(first, "rss_mb")
    assert median(last, "handles") <= median(first, "handles") + 8  # RocksDB's files come and go
    assert median(last, "threads") <= median(first, "threads")
    # Of neighbours' noise on a shared machine; a queue that grows makes it seconds.
    assert quantile(late, 0.5) <= 2 * quantile(early, 0.5) + 0.1


def look_at(worker: Worker, at_s: float) -> Figures:
    process = psutil.Process(worker.pid)
    return Figures(at_s, process.memory_info().rss / 2**20, process.num_fds(), process.num_threads())


def median(figures: list[Figures], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in figures))


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
