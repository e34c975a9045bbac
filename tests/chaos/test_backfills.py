"""Aggregates that begin late, and their backfill, through kills of either of two workers, on more sessions than memory
holds; what was refused when it came isn't counted when it is read again."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests import tally
from tests.recounting import MORE, assert_recounted, backfill_of, first_of, keepings, late_of, send_refused, wait_filled
from tests.rig import Rig
from tests.worker import Worker, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_new_aggregate_begins_on_both_workers_while_one_dies(rig: Rig) -> None:
    workers = [rig.worker("a").start(), rig.worker("b").start()]
    rig.deploy("1")
    with rig.sender(rate=1000):
        rig.wait_progress(1500)
        tally.publish(rig.store, "2", more=MORE)
        rig.control({"active": "2"})
        rig.wait_records("deployments", 2)
        workers[1].kill()
        rig.wait_progress(1500)
        workers[1].start().wait_ready()
        rig.wait_progress(1500)
    rig.wait_predictions()
    assert_recounted(rig)
    assert all(first_of(keeping, MORE[0]) for keeping in keepings(rig).values()), "they began after the table itself"
    for worker in workers:
        until(partial(tells_late, worker), 20, what=f"{worker.name} tells of them", alive=rig.running())
    rig.assert_exact()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_backfill_of_many_sessions_is_exact_whoever_dies_and_is_never_half(rig: Rig, guarantee: str) -> None:
    chance = random.Random(11)
    rig.defaults |= {"hot_sessions": 1000, "guarantee": guarantee, "session_timeout": 6}
    workers = [rig.worker("a").start(), rig.worker("b").start()]
    rig.deploy("1")
    sender = rig.sender(rate=300, sessions=10_000).send(30_000)
    send_refused(rig)
    tally.publish(rig.store, "2", more=MORE)
    with sender:
        rig.wait_progress(28_000, 120)
        rig.control({"active": "2"})
        rig.wait_records("deployments", 2)
        rig.wait_progress(300)
        rig.control({"action": "backfill", "author": "ann"})
        rig.wait_records("deployments", 3)
        for _ in range(3):
            victim = chance.choice(workers)
            until(partial(on_the_way, victim), 60, what=f"{victim.name} fills", alive=rig.running())
            rig.wait_out(2 * chance.random())
            victim.kill()
            rig.wait_progress(200)
            victim.start().wait_ready()
        wait_filled(rig, 3, 240)
        rig.wait_progress(300)
    rig.wait_predictions(120)
    assert_recounted(rig, since=0)
    rig.assert_exact(repeated=guarantee == "at_least_once", within_s=120)


def tells_late(worker: Worker) -> bool:
    return late_of(worker) == set(MORE)


def on_the_way(worker: Worker) -> bool:
    """Whether a worker has begun, or is through."""
    told = backfill_of(worker)
    return bool(told.get("share"))
