"""An early agent's outputs don't wait for the commit; its state is as exact as everybody's."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.rig import Rig
from tests.worker import until

APP = "tests.urgent.app"
CALLS = 40
SESSIONS = 8


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_early_outputs_are_seen_before_the_commit_and_a_crash_repeats_them_but_not_the_state(
    rig: Rig, guarantee: str
) -> None:
    never = rig.worker("a", app=APP, guarantee=guarantee, commit_interval=60).start().wait_log("is open")
    for n in range(CALLS):
        session = f"s{n % SESSIONS}"
        call = json.dumps({"id": f"c{n}", "session": session}).encode()
        rig.publisher.send(rig.topic("calls"), session.encode(), call)
    until(rig.publisher.delivered, 30, what="the calls are there")
    rig.wait_records("told", CALLS, within_s=20)
    never.kill()

    worker = rig.worker("a", app=APP, guarantee=guarantee).start()

    rig.wait_records("told", 2 * CALLS)
    for number in range(SESSIONS):
        answer = worker.get(f"/tables/calls/s{number}")
        assert answer.json() == CALLS // SESSIONS, "the calls before the crash count once"
    assert worker.terminate() == 0
    told = rig.reader("told").read_out()
    assert {record.headers["early"] for record in told} == {"1"}
    assert set(Counter(record.json["id"] for record in told).values()) == {2}
    numbers = {(record.json["id"], record.json["number"]) for record in told}
    assert numbers == {(f"c{n}", n // SESSIONS + 1) for n in range(CALLS)}
