"""A release that changes a table's type, and what becomes of its state when an older one gets a partition back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.changelog import POSITIONS
from engine.publisher import partition_of
from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import Worker, tails, until

pytestmark = pytest.mark.long

SESSIONS = [f"s{n}" for n in range(20)]
PARTITIONS = 4


@pytest.fixture
def rig(broker: Broker, tmp_path: Path) -> Iterator[Rig]:
    """Both brokers in turn."""
    with rig_on(broker, tmp_path, partitions=PARTITIONS) as rig:
        yield rig


class Orders:
    """Orders that are sent, and what is said of each."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.sent: defaultdict[str, int] = defaultdict(int)

    def send(self, *sessions: str) -> None:
        for session in sessions:
            self.sent[session] += 1
            value = json.dumps({"id": f"{session}-{self.sent[session]}", "session": session}).encode()
            self.rig.publisher.send(self.rig.topic("orders"), session.encode(), value)
        self.rig.publisher.flush()

    def wait(self, sessions: list[str]) -> None:
        """Until all orders of these have been counted."""
        self.rig.wait_records("counted", sum(self.sent[session] for session in sessions))

    def assert_each_counted_once(self) -> None:
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for record in self.rig.reader("counted").read_out():
            numbers[record.json["session"]].append(record.json["number"])
        assert numbers == {session: [*range(1, count + 1)] for session, count in self.sent.items()}


def test_an_older_release_leaves_a_newer_ones_partition_alone_and_nothing_is_lost(rig: Rig) -> None:
    orders = Orders(rig)
    alone = not rig.broker.transactions  # the embedded broker is for one worker, under one name
    ids = {"worker_id": "one"} if alone else {}
    old, new = (rig.worker(name, app=f"tests.releases.{name}", **ids) for name in ("before", "after"))
    old.start()
    with_open_topics(old)
    orders.send(*SESSIONS, *SESSIONS)
    orders.wait(SESSIONS)
    assert old.terminate() == 0, tails([old])

    new.start()
    with_open_topics(new)
    orders.send(SESSIONS[0])  # the only value of the new release
    orders.wait(SESSIONS)
    assert new.terminate() == 0, tails([new])

    written = ends(rig, partition := partition_of(SESSIONS[0].encode(), PARTITIONS))
    theirs = [s for s in SESSIONS if partition_of(s.encode(), PARTITIONS) != partition]
    old.start().wait_log(f"Partition {partition} stays closed", 60)
    said = old.log(None)
    assert "table 'counts', " in said
    assert f"key '{SESSIONS[0]}'" in said
    assert "values of version 2, this one knows 1 at most" in said
    orders.send(*SESSIONS)
    rig.wait_records("counted", 41 + len(theirs))  # the others go on
    reasons = old.get("/health/ready").json()["reasons"]
    assert any(reason.startswith(f"partition {partition} is not open: table 'counts'") for reason in reasons)
    assert len([reason for reason in reasons if "is not open" in reason]) == 1
    assert ends(rig, partition) == written

    if alone:
        assert old.terminate() == 0, tails([old])
    new.start()  # the upgrade goes on, and the old one beside it ends as ever
    with_open_topics(new)
    orders.send(*SESSIONS)
    assert alone or old.terminate() == 0, tails([old])
    orders.wait(SESSIONS)
    orders.assert_each_counted_once()
    assert new.terminate() == 0, tails([new])


def with_open_topics(worker: Worker) -> None:
    """Waits until the worker has partitions: topics are there, and the group knows it."""
    until(
        lambda: worker.get("/tables").status == 200 and worker.get("/tables").json()["partitions"]["open"],
        60,
        what="a partition is open",
        alive=[worker],
    )


def ends(rig: Rig, partition: int) -> dict[str, int]:
    """How far the changelogs of a partition have been written."""
    found = {}
    for table in ("counts", POSITIONS):
        reader = rig.reader(f"{rig.prefix}app-{table}-changelog")
        reader.read_out()
        found[table] = reader._positions[partition]
    return found
