"""A version asks for what sessions don't keep yet: it begins while events come, and is filled from the log on request.
Whatever is killed meanwhile, sessions have what a recount of the log gives (more of it: tests/chaos/test_backfills.py).
"""

from __future__ import annotations

import pytest

from tests import tally
from tests.recounting import MORE, assert_recounted, backfill_of, first_of, keepings, late_of, send_refused, wait_filled
from tests.rig import Rig
from tests.worker import until


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_version_asks_for_later_begins_under_load_and_a_kill_does_no_harm_to_its_backfill(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy("1")
    sender = rig.sender(rate=500).send(2000)
    send_refused(rig)
    tally.publish(rig.store, "2", more=MORE)
    with sender:
        rig.wait_progress(2000)
        rig.control({"active": "2"})
        until(lambda: late_of(worker) == set(MORE), 30, what="it tells since when they count", alive=rig.running())
        assert all(first_of(keeping, MORE[0]) != 0 for keeping in keepings(rig).values())
        rig.control({"action": "backfill", "author": "ann"})
        until(lambda: backfill_of(worker).get("share", 0) > 0, 30, what="a backfill is begun", alive=rig.running())
        worker.kill()
        worker.start().wait_ready()
        wait_filled(rig, 3)
        rig.wait_progress(300)
    rig.wait_predictions()
    assert_recounted(rig, since=0)
    assert late_of(worker) == set(), "what is filled from the beginning on isn't late"
    alerts = [one.json for one in rig.reader("alerts").read_out()]
    late = [(one["subject"], sorted(one["evidence"]["features"])) for one in alerts if one["kind"] == "features_late"]
    assert late == [("tally@2", sorted(MORE))]
    rig.assert_exact()
