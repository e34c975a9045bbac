"""A version on trial: as a canary for a share of the sessions, as a shadow for nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Any

import pytest

from models.routing import sides
from tests import tally
from tests.rig import Rig
from tests.worker import Worker, until


def test_a_session_keeps_its_side_while_the_share_grows_and_its_worker_dies(rig: Rig) -> None:
    for version in ("1", "2"):
        tally.publish(rig.store, version)
    worker = rig.worker("a").start()
    rig.deploy("1")
    sender = rig.sender(sessions=1000)
    tried(rig, [worker], {"action": "canary", "version": "2", "share": 0.1}, share=0.1)
    sender.send(3000)
    rig.wait_predictions()
    assert answered(rig)["2"] == on_canary(rig, 0.1)
    worker.kill()
    worker.start().wait_ready()
    sender.send(3000)
    rig.wait_predictions()
    assert answered(rig)["2"] == on_canary(rig, 0.1)

    tried(rig, [worker], {"action": "canary", "share": 0.4}, share=0.4)
    before = len(rig.sent)
    sender.send(3000)
    rig.wait_predictions()
    assert answered(rig, since=before)["2"] == on_canary(rig, 0.4, since=before)

    rig.control({"action": "rollback"})
    until(lambda: "canary" not in status(worker), 20, what="the canary is gone", alive=[worker])
    before = len(rig.sent)
    sender.send(500)
    rig.wait_predictions()
    assert answered(rig, since=before).keys() == {"1"}
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_thousand_sessions_keep_their_sides_while_workers_come_and_go(rig: Rig) -> None:
    for version in ("1", "2"):
        tally.publish(rig.store, version)
    a, b, c = (rig.worker(name, session_timeout=3) for name in "abc")
    a.start()
    b.start()
    rig.deploy("1")
    tried(rig, [a, b], {"action": "canary", "version": "2", "share": 0.1}, share=0.1)
    everyone = 10_000
    with rig.sender(rate=1500, sessions=everyone):
        rig.wait_progress(3000)
        c.start().wait_ready()
        rig.wait_progress(3000)
        a.kill()
        rig.wait_progress(3000)
        assert b.terminate() == 0, b.log()
        rig.wait_progress(3000)
        for worker in (a, b):
            worker.start().wait_ready()
        c.kill()
        rig.wait_progress(3000)
        until(lambda: len({one.session for one in rig.sent}) == everyone, 180, what="all were there", alive=[a, b])
    rig.assert_exact()
    canary = answered(rig)["2"]
    assert canary == on_canary(rig, 0.1)
    assert 0.09 <= len(canary) / everyone <= 0.11


def test_a_shadow_answers_beside_the_active_version_and_nobody_waits_for_it(rig: Rig) -> None:
    for version in ("1", "3"):
        tally.publish(rig.store, version)
    worker = rig.worker("a").start()
    rig.deploy("1")
    rig.control({"action": "shadow", "version": "3"})
    until(lambda: "shadow" in status(worker), 20, what="the shadow is loaded", alive=[worker])
    rig.sender().send(1000)
    rig.wait_predictions()
    until(lambda: figures(worker)["compared"] == 1000, 20, what="all is compared", alive=[worker])
    shadows = [r for r in rig.reader("predictions").read_out() if r.json["role"] == "shadow"]
    by_id = {r.json["id"]: r for r in shadows}
    assert len(by_id) == len(shadows) == 1000
    active = {r.json["event_id"]: r.json for r in rig.reader("predictions").records if r.json["role"] == "active"}
    for found in shadows:
        said, theirs = found.json, active[found.json["event_id"]]
        assert said["id"] == f"{theirs['id']}/shadow/tally@3"
        assert (said["version"], said["scores"], said["session"]) == ("3", theirs["scores"], theirs["session"])
        assert found.key == theirs["session"].encode()
    assert figures(worker)["agreed"] == 1000
    rig.assert_exact()


def test_limits_promote_a_good_canary_and_end_a_bad_one(rig: Rig) -> None:
    for version in ("1", "2", "3"):
        tally.publish(rig.store, version)
    rig.worker("a").start()
    rig.worker("b").start()
    rig.deploy("1")
    limits = {"min_events": 300, "min_agreement": 0.99, "max_error": 0.01}
    with rig.sender(rate=500):
        rig.control({"action": "canary", "version": "3", "share": 0.5, "limits": limits})
        rig.wait_records("deployments", 3, within_s=60)
        rig.control({"action": "canary", "version": "2", "share": 0.5, "limits": {"max_p99": 1e-6}})
        rig.wait_records("deployments", 5, within_s=60)
    found = [record.json for record in rig.reader("deployments").read_out()]
    assert [(one["active"], one.get("canary", {}).get("version"), one.get("author")) for one in found] == [
        ("1", None, None),
        ("1", "3", None),
        ("3", None, "limits"),
        ("3", "2", None),
        ("3", None, "limits"),
    ]
    assert "within the limits" in found[2]["reason"]
    assert "max_p99 is 1e-06" in found[4]["reason"]
    alerts = [record.json for record in rig.reader("alerts").read_out()]
    assert [(one["kind"], one["severity"], one["subject"], one["evidence"]["version"]) for one in alerts] == [
        ("canary_promoted", "info", tally.NAME, "3"),
        ("canary_rolled_back", "warning", tally.NAME, "2"),
    ]
    assert alerts[1]["id"] == f"{alerts[1]['evidence']['request']}/canary_rolled_back/{tally.NAME}/opened"
    assert alerts[1]["title"] == f"{tally.NAME}@2 is rolled back: {found[4]['reason']}"
    assert alerts[0]["evidence"]["figures"]["answers"] >= 300
    assert alerts[0]["evidence"]["limits"] == limits
    rig.assert_exact()


def on_canary(rig: Rig, share: float, since: int = 0) -> set[str]:
    """Sessions that a canary with this share answers. A larger share has all of a smaller one."""
    sessions = {one.session for one in rig.sent[since:]}
    return {session for session in sessions if sides(tally.NAME, [session.encode()])[0] < share}


def tried(rig: Rig, workers: list[Worker], request: dict[str, Any], share: float) -> None:
    rig.control(request)
    for worker in workers:
        until(partial(has_share, worker, share), 20, what="the share", alive=workers)


def has_share(worker: Worker, share: float) -> bool:
    return bool(status(worker).get("canary", {}).get("share") == share)


def status(worker: Worker) -> dict[str, Any]:
    return dict(worker.get("/models").json()["models"][tally.NAME])


def figures(worker: Worker) -> Counter[str]:
    return Counter(status(worker)["shadow"][0]["figures"])


def answered(rig: Rig, since: int = 0) -> dict[str, set[str]]:
    """Version -> sessions that it answered; of the events from number `since` on."""
    events = {one.id for one in rig.sent[since:]}
    found = defaultdict(set)
    for record in rig.reader("predictions").records:
        if record.json["role"] != "shadow" and record.json["event_id"] in events:
            assert (record.json["role"] == "canary") == (record.json["version"] == "2")
            found[record.json["version"]].add(record.json["session"])
    assert not (found["1"] & found["2"]), "a session has one side while the share stays"
    return {version: sessions for version, sessions in found.items() if sessions}
