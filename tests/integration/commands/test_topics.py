"""`faust -A app topics`: those that are missing are made by hand, and a wrong shape is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.settings import Settings
from tests.command import command, words_of
from tests.kafka import EMBEDDED_LATER, Broker


@EMBEDDED_LATER
async def test_missing_topics_are_created_by_hand(broker: Broker, prefix: str, tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "broker": broker.url, "topic_prefix": prefix, "app_id": f"{prefix}app", "partitions": 3, "data_dir": tmp_path,
    }  # fmt: skip
    created = json.loads(command("topics", "create", "--json", **said).stdout)["created"]
    assert {f"{prefix}observations", f"{prefix}{prefix}app-positions-changelog"} <= set(created)
    assert json.loads(command("topics", "create", "--json", **said).stdout)["created"] == []
    found = command("topics", "check", "--json", **said)
    assert {row["state"] for row in json.loads(found.stdout)["topics"]} == {"ok"}


async def test_topics_of_another_shape_are_a_fault(broker: Broker, settings: Settings) -> None:
    found = command("topics", "--json", **words_of(settings) | {"partitions": 7})
    assert found.returncode == 1
    wrong = [row for row in json.loads(found.stdout)["topics"] if row["state"] == "wrong"]
    assert "3 partitions" in wrong[0]["problem"]
