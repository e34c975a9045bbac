"""A version asks for what sessions don't keep yet: it begins while events come, and is filled from the log on request.
Whatever is killed meanwhile, sessions have what a recount of the log gives."""

from __future__ import annotations

from typing import Any

from tests import tally
from tests.recounting import MORE, assert_recounted, first_of, keepings, wait_filled
from tests.rig import Rig
from tests.worker import until


def test_a_new_aggregate_begins_under_load_and_a_kill_and_says_since_when(rig: Rig) -> None:
    first, second = rig.worker("a").start(), rig.worker("b").start()
    rig.deploy("1")
    with rig.sender(rate=1000):
        rig.wait_progress(1500)
        tally.publish(rig.store, "2", more=MORE)
        rig.control({"active": "2"})
        rig.wait_records("deployments", 2)
        second.kill()
        rig.wait_progress(1500)
        second.start().wait_ready()
        rig.wait_progress(1500)
    rig.wait_predictions()
    assert_recounted(rig)
    begun = [first_of(keeping, MORE[0]) for keeping in keepings(rig).values()]
    assert all(begun), f"they began after the table itself: {begun}"

    def told() -> bool:
        late = [worker.get("/models").json()["models"]["tally"].get("late_features", {}) for worker in (first, second)]
        return all(one.keys() == set(MORE) and all("since" in two for two in one.values()) for one in late)

    until(told, 20, what="both workers tell since when the new ones count", alive=rig.running())
    alerts = [one.json for one in rig.reader("alerts").read_out() if one.json["kind"] == "features_late"]
    assert [(one["subject"], sorted(one["evidence"]["features"])) for one in alerts] == [("tally@2", sorted(MORE))]
    rig.assert_exact()


def test_a_backfill_meets_the_work_and_a_kill_on_the_way_leaves_nothing_half(rig: Rig) -> None:
    workers = [rig.worker("a").start(), rig.worker("b").start()]
    rig.deploy("1")
    sender = rig.sender(rate=800).send(8000)
    tally.publish(rig.store, "2", more=MORE)
    with sender:
        rig.wait_progress(7000)
        rig.control({"active": "2"})
        rig.wait_records("deployments", 2)
        rig.wait_progress(1000)
        rig.control({"action": "backfill", "author": "ann"})
        rig.wait_records("deployments", 3)
        until(lambda: filling(workers[0]), 20, what="a worker has begun", alive=rig.running())
        workers[0].kill()
        rig.wait_progress(500)
        workers[0].start().wait_ready()
        wait_filled(rig, 3)
        rig.wait_progress(1000)
    rig.wait_predictions()
    assert_recounted(rig, since=0)
    late = [worker.get("/models").json()["models"]["tally"].get("late_features") for worker in workers]
    assert late == [None, None], "what is filled from the beginning on isn't late"
    rig.assert_exact()


def filling(worker: Any) -> bool:
    """Whether a worker is on the way."""
    told = worker.get("/models").json()["models"]["tally"].get("backfill", {})
    return bool(told.get("left") or told.get("done"))
