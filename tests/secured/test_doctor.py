"""A doctor on a broker with TLS and ACLs: no more rights than a worker's, and what it can't ask without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Rig, rig_on
from tests.secured.kafka import SASL_SSL, SecuredKafka
from tests.secured.test_secured import application, command, login, with_topics


@pytest.fixture
def rig(secured: SecuredKafka, tmp_path: Path) -> Iterator[Rig]:
    with rig_on(secured.broker, tmp_path, partitions=2) as rig:
        yield rig


async def test_clock_and_certificates_take_no_more_than_a_workers_rights(
    rig: Rig, secured: SecuredKafka, tmp_path: Path
) -> None:
    worker = rig.worker("a", **login(secured, tmp_path), web_cert=secured.certificates.server("127.0.0.1", days=10))
    granted = await with_topics(rig)
    secured.grant([right for right in granted if right.kind == "topic"])

    def found() -> tuple[int, dict[str, dict[str, Any]]]:
        done = command(worker, "doctor", "--json")
        checks = json.loads(done.stdout[done.stdout.index("{") :])["checks"]
        return done.returncode, {row["check"]: row for row in checks}

    app_id = application(rig)
    status, rows = found()
    assert (status, rows["rights"]["ok"], rows["clock"]["ok"]) == (1, False, True)
    missing = f"WRITE on the transactional id {app_id}-clock and READ on the group {app_id}"
    assert missing in rows["clock"]["detail"]
    secured.grant(granted)
    status, rows = found()
    assert f"ms from that of the broker at {secured.address(SASL_SSL)}" in rows["clock"]["detail"]
    tls = rows["broker TLS"]["detail"]
    assert f"ssl_cafile={secured.certificates.authority} has" in tls
    assert f"the certificate of the broker at {secured.address(SASL_SSL)} has 29 days left" in tls
    assert (status, rows["web TLS"]["ok"], rows["web TLS"]["soon"]) == (0, True, True)
    assert "runs out in 9 days" in rows["web TLS"]["detail"]
