"""A new release that reads one more topic joins workers of the old one, and takes over from them."""

from __future__ import annotations

import pytest

from tests.rig import Rig
from tests.stream import EPOCH_MS, Sent, observation
from tests.worker import tails


def test_a_release_that_reads_one_more_topic_keeps_both_workers_healthy(rig: Rig) -> None:
    old = rig.worker("old").start()
    rig.deploy()
    new = rig.worker("new", app="tests.upgraded.app")
    notes = [Sent(f"n{number}", f"s{number % 50}", EPOCH_MS + number, 1.0) for number in range(500)]
    with rig.sender():
        rig.wait_progress(500)
        new.start().wait_ready()
        for note in notes:
            rig.publisher.send(rig.topic("notes"), note.session.encode(), observation(note))
        rig.wait_progress(4000)
        assert old.ready(), tails([old, new])
        assert new.ready(), tails([old, new])
        assert "belongs to another worker" not in old.log(None) + new.log(None), tails([old, new])

        assert old.terminate() == 0, tails([old])
        rig.wait_progress(1000)
    rig.wait_records("dead-letters", len(notes))
    rig.assert_exact()
    answered = rig.reader("dead-letters")
    answered.catch_up()
    assert sorted(record.json["id"] for record in answered.records) == sorted(note.id for note in notes)


@pytest.mark.long
def test_a_release_that_reads_one_more_topic_takes_over_under_its_old_name_at_a_new_address(rig: Rig) -> None:
    old = rig.worker("a").start()
    rig.deploy()
    new = rig.worker("a", app="tests.upgraded.app")
    notes = [Sent(f"n{number}", f"s{number % 50}", EPOCH_MS + number, 1.0) for number in range(100)]
    with rig.sender(rate=500):
        rig.wait_progress(500)
        assert old.terminate() == 0, tails([old])
        assert old.url != new.url
        new.start().wait_ready()
        for note in notes:
            rig.publisher.send(rig.topic("notes"), note.session.encode(), observation(note))
        rig.wait_progress(500)
    rig.wait_records("dead-letters", len(notes))
    rig.assert_exact()
