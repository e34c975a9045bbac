"""The broker goes away under load and comes back: the worker waits for it, says so, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.conftest import OwnKafka
from tests.rig import rig_on
from tests.worker import until

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("away_s", [3, pytest.param(30, marks=pytest.mark.long)])
def test_a_broker_that_goes_away_and_comes_back_loses_nothing(own_kafka: OwnKafka, tmp_path: Path, away_s: int) -> None:
    with rig_on(own_kafka.broker, tmp_path) as rig:
        worker = rig.worker("a").start()
        rig.deploy()
        with rig.sender(rate=1000):
            rig.wait_progress(1000)
            own_kafka.stop()
            back = time.monotonic() + away_s
            until(lambda: time.monotonic() >= back, away_s + 1, what="the broker was away", alive=[worker])
            own_kafka.start()
            rig.wait_progress(2000, within_s=90)
        worker.wait_log("Every broker answers again")  # while it lives: it looks every two seconds
        rig.assert_exact(within_s=90)
        said = [line for line in worker.log(None).splitlines() if " WARNING  A broker " in line or " ERROR " in line]
        assert 1 <= len(said) <= 4, said
