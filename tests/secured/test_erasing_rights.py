"""A session is erased by somebody who may do nothing else: no more rights than docs/security.md lists for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Rig, rig_on
from tests.secured.kafka import Right, SecuredKafka
from tests.secured.test_secured import application, command, login
from tests.stream import EPOCH_MS, Sent, observation

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]

SESSION = "ann-58c1"


@pytest.fixture
def rig(secured: SecuredKafka, tmp_path: Path) -> Iterator[Rig]:
    with rig_on(secured.broker, tmp_path, partitions=2) as rig:
        yield rig


def test_a_session_is_erased_with_the_two_rights_that_are_listed_and_each_that_is_missing_is_named(
    rig: Rig, secured: SecuredKafka, tmp_path: Path
) -> None:
    rig.worker("a").start()  # by the door of the tests: the rights are those of who asks
    rig.deploy()
    one = Sent("e1", SESSION, EPOCH_MS, 1.0)
    rig.publisher.send(rig.topic("observations"), SESSION.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("predictions", 1)

    eraser = rig.worker("eraser", **login(secured, tmp_path))
    erase = ("tables", "erase", SESSION, "--json")
    asks, hears = Right("WRITE", "topic", rig.topic("control")), Right("READ", "topic", rig.topic("alerts"))
    none: list[Right] = []
    for granted, missing in ((none, [asks, hears]), ([asks], [hears]), ([hears], [asks])):
        for right in granted:
            secured.grant([right])
        refused = command(eraser, *erase)
        assert refused.returncode == 1, refused.stdout
        for right in missing:
            assert f"{right.operation} on topic {right.name}" in refused.stdout
        for right in granted:
            assert f"{right.operation} on topic {right.name}" not in refused.stdout
            secured.revoke(right)
    rig.wait_out(1)  # the broker's authorizer hears of it a moment later
    assert rig.state(SESSION)["count"] == 1

    secured.grant([asks, hears])
    done = command(eraser, *erase)
    assert done.returncode == 0, done.stdout
    document = json.loads(done.stdout)
    assert (document["state"], document["values"]["sessions"]) == ("erased", 1)
    assert application(rig) not in done.stdout  # nothing of it could be seen

    secured.grant([Right("DESCRIBE", "topic", rig.topic(f"{application(rig)}-positions-changelog"))])
    wrong = rig.worker("wrong", **login(secured, tmp_path) | {"app_id": f"{rig.prefix}other"})
    assert command(wrong, *erase).returncode == 0  # whoever may not see it can't know that there is none
    rig.terminate()
