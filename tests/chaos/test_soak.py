"""Half an hour of 5,000 events a second: memory, handles, threads and latency are at the end what they were after the
warm-up, and every answer is there once and right.

SOAK_S and SOAK_RATE change duration and rate.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from typing import Final, NamedTuple

import psutil
import pytest

from tests.endless import Judge, Load
from tests.rig import Rig
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


@pytest.mark.long
@pytest.mark.timeout(DURATION_S + 300)
def test_nothing_grows_in_a_long_run(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    figures: list[Figures] = []
    with Load(rig.publisher, rig.topic("observations"), sessions=SESSIONS, rate=RATE) as load:
        judge = Judge(rig, load)
        began = time.monotonic()
        while time.monotonic() < began + DURATION_S:
            judge.look(LOOK_S)
            figures.append(look_at(worker, time.monotonic() - began))
    judge.look_to_the_end()
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
