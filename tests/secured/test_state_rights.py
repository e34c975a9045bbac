"""A file of state on a broker with ACLs: who may run a worker may also save its state, and restore it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Rig, rig_on
from tests.secured.kafka import SecuredKafka
from tests.secured.test_secured import application, command, login, with_topics


@pytest.fixture
def rig(secured: SecuredKafka, tmp_path: Path) -> Iterator[Rig]:
    with rig_on(secured.broker, tmp_path, partitions=2) as rig:
        yield rig


@pytest.mark.long
async def test_state_is_saved_and_restored_with_the_rights_of_a_worker(
    rig: Rig, secured: SecuredKafka, tmp_path: Path
) -> None:
    worker, file = rig.worker("a", **login(secured, tmp_path)), str(tmp_path / "state.zip")
    granted = await with_topics(rig)
    secured.grant([right for right in granted if right.kind == "topic"])
    saved = command(worker, "state", "export", file)
    assert saved.returncode == 0, saved.stdout
    refused = command(worker, "state", "import", file, "--yes")
    assert refused.returncode == 1
    assert f"READ on consumer group {application(rig)}" in refused.stdout
    assert f"WRITE on transactional id {application(rig)}-import" in refused.stdout
    secured.grant(granted)
    for words in (["import", file, "--yes"], ["verify", file]):
        done = command(worker, "state", *words)
        assert done.returncode == 0, done.stdout
    again = command(worker, "reset", "--from", "2026-01-01T00:00Z", "--yes")
    assert again.returncode == 0, again.stdout
