"""Workers join and leave all the time: the group deals its partitions again and again, and the work goes on."""

from __future__ import annotations

import logging
import random
import time

import pytest

from tests.rig import Rig

logger = logging.getLogger(__name__)

ROUNDS = 8
"""Of two arrivals and two departures each."""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_thirty_rebalances_under_load_lose_nothing_and_repeat_nothing(rig: Rig) -> None:
    """Each arrival and each departure is one; on two cores they take about a minute."""
    chance = random.Random(30)
    stays, *others = [rig.worker(name, session_timeout=3, worker_id=None) for name in "abc"]
    stays.start()
    rig.deploy()
    with rig.sender(rate=500):
        began = time.monotonic()
        for _ in range(ROUNDS):
            for other in others:
                other.start()
            for other in others:
                other.wait_ready()
            chance.shuffle(others)
            assert others[0].terminate() == 0, others[0].log()
            if chance.random() < 0.5:
                others[1].kill()
            else:
                assert others[1].terminate() == 0, others[1].log()
        took = time.monotonic() - began
        rig.wait_progress(1000)
    rig.assert_exact()
    logger.warning("%d arrivals and departures in %.0f s", 4 * ROUNDS, took)
