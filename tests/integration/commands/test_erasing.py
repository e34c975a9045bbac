"""`faust -A app tables erase`: a request that waits under its session's key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.erasing import erase
from core.errors import SettingsError, UsageError
from core.settings import Settings
from core.topics import CONTROL, changelog
from engine.admin import ensure_topics
from engine.changelog import POSITIONS
from engine.connection import connect
from tests.command import command
from tests.kafka import Broker
from tests.stream import Reader


async def test_an_erasure_that_nobody_does_yet_waits_under_its_sessions_key(broker: Broker, settings: Settings) -> None:
    connection = await connect(settings, broker.url)
    with pytest.raises(SettingsError, match=f"no application '{settings.app_id}'.*HOMUNCULUS_APP_ID"):
        await erase(connection, "ann")
    await ensure_topics(broker.bootstrap, [changelog(settings.app_id, POSITIONS)], settings)
    for wrong in ("", "x" * 1001):
        with pytest.raises(UsageError, match="1 to 1,000 characters"):
            await erase(connection, wrong)
    report = await erase(connection, "ann", 0.1)
    assert report.ok
    assert report.document["state"] == "waiting"
    reader = Reader(broker.bootstrap, settings.topic_prefix + CONTROL.name)
    reader.catch_up()
    [request] = reader.records
    assert request.key == b"ann"
    assert (request.json["action"], request.json["session"]) == ("erase", "ann")
    assert report.document["request"] == f"{request.topic}/{request.partition}/{request.offset}"


def test_tables_knows_no_other_action(tmp_path: Path) -> None:
    found = command("tables", "eras", "ann", data_dir=tmp_path)
    assert found.returncode == 1
    assert "tables erase SESSION" in found.stderr
