"""A worker that has changed its model a thousand times is no larger than after fifty."""

from __future__ import annotations

import json
import logging
import statistics
from functools import partial
from typing import Final

import psutil
import pytest

from tests import tally
from tests.chaos.test_swaps import Versions
from tests.endless import Judge, Load
from tests.rig import Rig
from tests.stream import Publisher
from tests.worker import Worker

logger = logging.getLogger(__name__)

SWAPS: Final = 1000
FIRST: Final = 50
LOOKED_AT: Final = 20
"""Swaps whose memory one figure is the median of."""
GROWTH: Final = 1.05
RATE: Final = 40
"""Events a second: enough to see each swap in each partition. Memory grows with events too, by what RocksDB has yet to
write to disk as far as is known: at 300 a second by 11 MB in this time."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_after_a_thousand_swaps_is_what_it_was_after_fifty(rig: Rig) -> None:
    """Each of a version that it has never seen, under a little load."""
    for version in range(1, SWAPS + 2):
        tally.publish(rig.store, str(version))
    worker = rig.worker("a", commit_interval=0.02).start()
    rig.deploy("1")
    requests, versions, megabytes = Publisher(rig.broker.bootstrap), Versions(rig.partitions), []
    with Load(rig.publisher, rig.topic("observations"), sessions=2000, rate=RATE) as load:
        judge = Judge(rig, load, versions.take)
        for version in range(2, SWAPS + 2):
            requests.send(rig.topic("control"), tally.NAME.encode(), json.dumps({"active": str(version)}).encode())
            requests.flush()
            judge.look_until(partial(versions.everywhere, version), 60, f"all answer with {version}")
            megabytes.append(resident_mb(worker))
    judge.look_to_the_end()
    rig.terminate()
    figures = [statistics.median(megabytes[at - LOOKED_AT : at]) for at in (FIRST, SWAPS // 2, SWAPS)]
    logger.warning("MB after %d, %d and %d swaps: %.1f, %.1f, %.1f", FIRST, SWAPS // 2, SWAPS, *figures)
    assert figures[-1] < GROWTH * figures[0]


def resident_mb(worker: Worker) -> float:
    """Of the worker, and of what it has started."""
    process = psutil.Process(worker.pid)
    return float(sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))) / 2**20
