"""Somebody adds partitions to a topic under load: where that parts sessions from their state, all workers stop and say
what to do, and what they had answered by then is right."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # re-exported, not listed

from tests import tally
from tests.rig import Rig
from tests.stream import Sent, observation

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ADDED = 6
STRAY = Sent("stray", "s0", 1_700_000_000_000, 1.0)


def test_partitions_added_to_an_input_stop_all_workers_and_lose_nothing(rig: Rig) -> None:
    workers = [rig.worker(name).start() for name in "ab"]
    rig.deploy()
    with rig.sender(rate=1000):
        rig.wait_progress(1000)
        grow(rig, "observations")
        stray(rig)
        for worker in workers:
            assert worker.wait(60) == 3, worker.log()
            assert f"{rig.topic('observations')} has been given more than the 4 partitions" in worker.log()
            assert "docs/guarantees.md" in worker.log()
    assert_prefix(rig)

    assert workers[0].start().wait(30) == 1, workers[0].log()
    assert f"{rig.topic('observations')} has {ADDED} partitions but HOMUNCULUS_PARTITIONS is 4" in workers[0].log()
    assert_prefix(rig)


def test_partitions_added_to_outputs_and_changelogs_harm_nothing_before_the_next_start(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    grown = ["predictions", f"{rig.prefix}app-sessions-changelog"]
    with rig.sender(rate=1000):
        rig.wait_progress(1000)
        for name in grown:
            grow(rig, name)
        rig.wait_progress(15_000)
    rig.assert_exact()
    assert worker.start().wait(30) == 1, worker.log()
    assert f"has {ADDED} partitions but HOMUNCULUS_PARTITIONS is 4" in worker.log()


def grow(rig: Rig, topic: str) -> None:
    """Adds partitions."""
    name = rig.topic(topic)
    admin = AdminClient({"bootstrap.servers": rig.broker.bootstrap})
    admin.create_partitions([NewPartitions(name, ADDED)])[name].result(30)


def stray(rig: Rig) -> None:
    """An event in a partition that had not been there."""
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap})
    producer.produce(rig.topic("observations"), observation(STRAY), STRAY.session.encode(), partition=ADDED - 1)
    assert producer.flush(30) == 0


def assert_prefix(rig: Rig) -> None:
    """What is answered is answered once and right, and of each session it is the first events."""
    answers = rig.reader("predictions").read_out()
    ids = {record.json["event_id"] for record in answers}
    waiting: set[str] = set()
    for one in rig.sent:
        if one.id not in ids:
            waiting.add(one.session)
        else:
            assert one.session not in waiting, f"{one.id} was answered, an earlier event of {one.session} was not"
    tally.assert_state_of_each(answers, [one for one in rig.sent if one.id in ids])
