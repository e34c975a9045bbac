"""A doctor on a broker with TLS and ACLs: no more rights than a worker's, and what it can't ask without them."""

from __future__ import annotations

import json
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


async def test_clock_and_certificates_take_no_more_than_a_workers_rights(
    rig: Rig, secured: SecuredKafka, tmp_path: Path
) -> None:
    worker = rig.worker("a", **login(secured, tmp_path))
    granted = await with_topics(rig)
    secured.grant([right for right in granted if right.kind == "topic"])

    def found() -> dict[str, str]:
        done = command(worker, "doctor", "--json")
        checks = json.loads(done.stdout[done.stdout.index("{") :])["checks"]
        return {row["check"]: row["detail"] for row in checks}

    app_id = application(rig)
    assert f"WRITE on the transactional id {app_id}-clock and READ on the group {app_id}" in found()["clock"]
    secured.grant(granted)
    rows = found()
    assert f"ms from that of the broker at {secured.address(2)}" in rows["clock"]
    assert f"ssl_cafile={secured.certificates.authority} has" in rows["broker TLS"]
    assert f"the certificate of the broker at {secured.address(2)} has 29 days left" in rows["broker TLS"]
