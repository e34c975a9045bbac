"""More comes than gets through, for a minute: the worker's memory stays where it was once its queues were full, and
afterwards every event is answered once and right.

BOUND_MB is what full queues may add to an idle worker; GROWTH_MB what memory may gain while they stay full and 90,000
events more come than get through: a queue that kept them would gain 45 MB and more, RocksDB's write buffers gain some.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.kafka import Broker
from tests.proxy import Proxy
from tests.rig import Rig, rig_on
from tests.worker import Worker

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FILL_S: Final = 30.0
"""Seconds in which the queues fill."""
WATCH_S: Final = 45.0
BOUND_MB: Final = 100.0
GROWTH_MB: Final = 20.0


@pytest.fixture
def rig(wired_kafka: tuple[Broker, Proxy], wire: Proxy, tmp_path: Path) -> Iterator[Rig]:
    """Four partitions; the worker is at the wire, sender and reader are not."""
    broker, _ = wired_kafka
    with rig_on(broker, tmp_path) as rig:
        rig.defaults["broker"] = f"kafka://127.0.0.1:{wire.port}"
        yield rig


def memory_mb(worker: Worker) -> float:
    return float(psutil.Process(worker.pid).memory_info().rss) / 2**20


def overloaded(rig: Rig, worker: Worker) -> None:
    """Looks at the worker while more comes than gets through."""
    idle = memory_mb(worker)
    rig.wait_out(FILL_S)
    figures = []
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        rig.wait_out(0.5)
        figures.append(memory_mb(worker))
    third = len(figures) // 3
    first, last = statistics.median(figures[:third]), statistics.median(figures[-third:])
    behind = len(rig.sent) - rig.reader("predictions").catch_up()
    logger.warning(
        "idle %.0f MB, queues full %.0f, at the end %.0f, at most %.0f; %d of %d events behind",
        *(idle, first, last, max(figures)),
        *(behind, len(rig.sent)),
    )
    assert behind > 20_000, "that was no overload"
    assert max(figures) < idle + BOUND_MB
    assert last < first + GROWTH_MB


def test_memory_is_bounded_while_the_broker_is_slow(rig: Rig, wire: Proxy) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    sender = rig.sender(rate=2500, sessions=5000)
    sender.send(5000)
    rig.wait_predictions()
    with sender:
        wire.slow(0.0, 300_000, 2_000_000)
        overloaded(rig, worker)
        before = rig.reader("predictions").catch_up()
        rig.wait_out(20)
        assert rig.reader("predictions").catch_up() > before, "slow, and not stuck"
        wire.slow()
    rig.wait_predictions(within_s=180)
    rig.assert_exact()


def test_memory_is_bounded_while_a_model_is_slow(rig: Rig) -> None:
    worker = rig.worker("a", app="tests.sluggish.app").start()
    rig.deploy()
    sender = rig.sender(rate=2500, sessions=5000)
    sender.send(5000)
    rig.wait_predictions()
    with sender:
        overloaded(rig, worker)
    assert worker.terminate() == 0, worker.log()
    rig.worker("quick").start()
    rig.wait_predictions(within_s=180)
    rig.assert_exact()
