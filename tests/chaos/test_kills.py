"""A worker that is killed at random moments under load: nothing is lost, nothing is repeated, the state is exact."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Rig

MANY = pytest.param(10, id="10 kills", marks=[pytest.mark.long, pytest.mark.timeout(600)])


@pytest.mark.parametrize("kills", [pytest.param(2, id="2 kills"), MANY])
def test_kill_nine_loses_nothing_and_repeats_nothing(rig: Rig, kills: int) -> None:
    kill_under_load(rig, kills)
    rig.assert_exact()


@pytest.mark.parametrize("kills", [pytest.param(1, id="1 kill"), MANY])
def test_at_least_once_on_kafka_loses_nothing_and_repeats_carry_the_same_id(rig: Rig, kills: int) -> None:
    kill_under_load(rig, kills, guarantee="at_least_once")
    rig.assert_exact(repeated=True)


@pytest.mark.parametrize("kills", [pytest.param(1, id="1 kill"), MANY])
def test_on_the_embedded_broker_nothing_is_lost_and_repeats_carry_the_same_id(embedded_rig: Rig, kills: int) -> None:
    kill_under_load(embedded_rig, kills, session_timeout=3)
    embedded_rig.assert_exact(repeated=True)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_compressed_records_are_lost_and_repeated_as_little(rig: Rig) -> None:
    kill_under_load(rig, 4, compression="gzip")  # the one that needs no package
    rig.assert_exact()


def kill_under_load(rig: Rig, kills: int, **settings: Any) -> None:
    """Kills a worker every few hundred to few thousand predictions; its data folder is kept and removed in turn."""
    moments = random.Random(kills)
    worker = rig.worker("a", **settings).start()
    rig.deploy()
    with rig.sender():
        for number in range(kills):
            rig.wait_progress(moments.randrange(200, 4000))
            worker.kill()
            if number % 2:
                shutil.rmtree(Path(worker.environment["HOMUNCULUS_DATA_DIR"]))
            worker.start().wait_ready()
        rig.wait_progress(500)
