"""What commands show of what there is, and the list of the commands themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.reading import newest
from core.events import Deployment
from core.settings import Settings
from core.topics import DEPLOYMENTS
from engine.connection import connect
from tests import tally
from tests.command import command, words_of
from tests.kafka import EMBEDDED_LATER, Broker
from tests.stream import EPOCH_MS, Publisher


async def test_a_compacted_topic_is_read_to_its_newest_values(broker: Broker, settings: Settings) -> None:
    connection, publisher = await connect(settings, broker.url), Publisher(broker.bootstrap, idempotent=False)
    topic = settings.topic_prefix + DEPLOYMENTS.name
    for revision in (1, 2, 3):
        for model in ("a", "b", "gone"):
            one = Deployment(model=model, revision=revision, active=str(revision), since=0)
            publisher.send(topic, model.encode(), one.model_dump_json().encode())
    publisher.send(topic, b"gone", None)
    publisher.flush()
    found = await newest(connection, DEPLOYMENTS)
    assert {name: one.revision for name, one in found.items()} == {"a": 3, "b": 3}


@EMBEDDED_LATER
async def test_topics_tables_and_models_say_what_there_is(broker: Broker, settings: Settings, tmp_path: Path) -> None:
    tally.publish(tmp_path / "store", "1")
    one = Deployment(model=tally.NAME, revision=4, active="1", since=EPOCH_MS, author="ann")
    publisher = Publisher(broker.bootstrap, idempotent=False)
    publisher.send(settings.topic_prefix + DEPLOYMENTS.name, tally.NAME.encode(), one.model_dump_json().encode())
    publisher.flush()
    said = words_of(settings)

    topics = json.loads(command("--json", "topics", **said).stdout)["topics"]
    states = {row["name"].removeprefix(settings.topic_prefix): row["state"] for row in topics}
    assert states["observations"] == "ok"
    assert states[f"{settings.app_id}-sessions-changelog"] == "missing"

    models = json.loads(command("models", "--json", **said).stdout)["models"]
    assert models[0]["store"] == ["1"]
    assert models[0]["deployment"]["revision"] == 4

    tables = json.loads(command("tables", "--json", **said).stdout)["tables"]
    assert {row["name"] for row in tables} >= {"sessions", "deployments"}
    text = command("tables", **said).stdout
    assert "One row a session" in text


@pytest.mark.parametrize("words", [("models", "freeze", "m", "2"), ("models", "shwo", "m"), ("topics", "crate")])
def test_another_action_names_those_that_there_are(words: tuple[str, ...], tmp_path: Path) -> None:
    found = command(*words, data_dir=tmp_path)
    assert found.returncode == 1
    assert f"there is `{words[0]} " in found.stderr


def test_agents_shows_ours_and_fausts_misleading_commands_are_gone() -> None:
    found = json.loads(command("agents", "--json").stdout)["agents"]
    assert {"agents.scoring.score", "agents.deployments.decide"} <= {row["name"] for row in found}
    assert all(row["topic"] and row["help"] for row in found)
    names = command("--help").stdout
    for gone in ("clean-versions", "model "):
        assert f"  {gone}" not in names
    for there in ("models", "tables", "topics", "replay", "reset", "state", "doctor", "worker"):
        assert f"  {there}" in names
