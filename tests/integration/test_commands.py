"""Operator commands as people type them, against a broker with one application's topics on it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli import checks
from cli.erasing import erase
from cli.reach import reach
from cli.reading import newest
from cli.replay import Filter, replay
from core.errors import SettingsError, UsageError
from core.events import Deployment
from core.settings import EMBEDDED, Settings
from core.topics import ALL, CONTROL, DEAD_LETTERS, DEPLOYMENTS, OBSERVATIONS, changelog
from engine.admin import ensure_topics
from engine.app import App
from engine.changelog import POSITIONS
from engine.connection import Connection, connect
from engine.store import Meta, PartitionStore, RocksMemory
from tests import tally
from tests.kafka import Broker, free_port
from tests.rig import Rig
from tests.stream import EPOCH_MS, Publisher, Reader, Sent, observation
from tests.worker import ROOT


def command(*words: str, stdin: str = "", **settings: Any) -> subprocess.CompletedProcess[str]:
    """`faust -A app WORDS`, with these settings of HOMUNCULUS_* in lower case."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")}
    environment |= {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app", *words],
        cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
async def settings(broker: Broker, prefix: str, tmp_path: Path) -> Settings:
    """An application of this test alone, whose topics exist."""
    ours = Settings(
        broker=broker.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3, data_dir=tmp_path / "data",
        model_store=str(tmp_path / "store"),
    )  # fmt: skip
    await ensure_topics(broker.bootstrap, ALL, ours)
    return ours


def words_of(ours: Settings) -> dict[str, Any]:
    """The settings, as environment variables say them."""
    names = ("broker", "topic_prefix", "app_id", "partitions", "data_dir", "model_store")
    return {name: getattr(ours, name) for name in names}


# -- replay --------------------------------------------------------------------------------------------------------


class Letters:
    """Dead letters as the engine writes them, and what came back."""

    def __init__(self, broker: Broker, ours: Settings) -> None:
        self.topic = ours.topic_prefix + DEAD_LETTERS.name
        self.source = ours.topic_prefix + OBSERVATIONS.name
        self.publisher = Publisher(broker.bootstrap, idempotent=broker.transactions)
        self.reader = Reader(broker.bootstrap, self.source)
        self.count = 0

    def write(self, count: int, *, error: str = "FieldError", source: str | None = None, **more: str) -> None:
        for _ in range(count):
            number, self.count = self.count, self.count + 1
            headers = {"source": f"{source or self.source}/{number % 3}/{number}", "error": error, "traceparent": "t"}
            self.publisher.send(self.topic, f"s{number}".encode(), f"letter {number}".encode(), headers | more)
        self.publisher.flush()

    def back(self) -> Counter[str]:
        self.reader.catch_up()
        return Counter((record.value or b"").decode() for record in self.reader.records)


async def run(connection: Connection, letters: Letters, *, dry: bool = False, **filters: str) -> int:
    wanted = Filter({letters.source: 3}, filters.get("source"), filters.get("error"))
    return (await replay(connection, wanted, dry)).replayed.total()


async def test_each_letter_goes_back_once_to_its_partition_with_its_key_and_trace(
    broker: Broker, settings: Settings
) -> None:
    letters, connection = Letters(broker, settings), await connect(settings, broker.url)
    letters.write(700)
    letters.write(20, error="NoModelError")
    assert await run(connection, letters, dry=True) == 720
    assert not letters.back()
    assert await run(connection, letters) == 720
    assert await run(connection, letters) == 0
    letters.write(5)
    assert await run(connection, letters) == 5
    assert letters.back() == Counter(f"letter {number}" for number in range(725))
    for record in letters.reader.records:
        number = int((record.value or b"").split()[1])
        assert record.partition == number % 3
        assert record.key == f"s{number}".encode()
        assert record.headers["replayed"].startswith(f"{letters.topic}/")
        assert record.headers.keys() == {"traceparent", "replayed"}


@pytest.mark.parametrize("letters", [0, 3])
async def test_a_dry_run_leaves_nothing_open(broker: Broker, prefix: str, letters: int) -> None:
    settings = Settings(broker=broker.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    connection = await connect(settings, broker.url)
    there = Letters(broker, settings)
    if letters:
        await ensure_topics(broker.bootstrap, ALL, settings)
        there.write(letters)
    gc.collect()
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    assert await run(connection, there, dry=True) == letters
    gc.collect()
    assert not complaints


async def test_what_a_filter_leaves_out_waits_for_the_next_replay(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    settings = Settings(broker=kafka.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    await ensure_topics(kafka.bootstrap, ALL, settings)
    letters, connection = Letters(kafka, settings), await connect(settings, kafka.url)
    for _ in range(30):
        letters.write(7)
        letters.write(2, error="NoModelError")
    assert await run(connection, letters, error="NoModelError") == 60
    assert await run(connection, letters, error="NoModelError") == 0
    letters.write(5, error="NoModelError")
    assert await run(connection, letters) == 215
    assert await run(connection, letters) == 0
    assert letters.back() == Counter(f"letter {number}" for number in range(275))


async def test_a_filter_on_a_broker_that_cannot_remember_it_is_refused(
    embedded: Broker, prefix: str, tmp_path: Path
) -> None:
    settings = Settings(broker=embedded.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    await ensure_topics(embedded.bootstrap, ALL, settings)
    letters, connection = Letters(embedded, settings), await connect(settings, embedded.url)
    letters.write(7)
    with pytest.raises(UsageError, match="without --source"):
        await run(connection, letters, error="FieldError")
    assert await run(connection, letters, dry=True, error="FieldError") == 7
    assert await run(connection, letters) == 7


async def test_a_letter_that_claims_another_source_is_never_written_there(broker: Broker, settings: Settings) -> None:
    letters, connection = Letters(broker, settings), await connect(settings, broker.url)
    deployments = settings.topic_prefix + DEPLOYMENTS.name
    letters.write(3, source=deployments)
    letters.write(1, source="__consumer_offsets")
    letters.write(1, truncated="5000000")
    letters.publisher.send(letters.topic, None, b"no headers at all")
    letters.publisher.flush()
    tally_ = await replay(connection, Filter({letters.source: 3}, None, None), False)
    assert tally_.replayed.total() == 0
    assert tally_.left == {
        "its source is no input topic of this application": 5,
        "was too large to be kept whole": 1,
    }
    reader = Reader(broker.bootstrap, deployments)
    assert reader.catch_up() == 0
    reader.close()


async def test_events_that_came_before_their_model_are_answered_after_a_replay(rig: Rig) -> None:
    rig.worker("a", without_model="dead-letter").start()
    until_up = rig.workers[0]
    until_up.wait_log("Partition 0 is open", 40)
    for number in range(30):
        one = Sent(f"e{number}", f"s{number % 7}", EPOCH_MS + number, 1.0)
        rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("dead-letters", 30)
    rig.deploy()
    settings: dict[str, Any] = {
        "broker": rig.broker.url,
        "topic_prefix": rig.prefix,
        "app_id": f"{rig.prefix}app",
        "partitions": rig.partitions,
    }
    first = command("replay", "--source", "observations", "--error", "NoModelError", "--json", **settings)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["replayed"] == 30
    rig.wait_records("predictions", 30)
    second = command("--json", "replay", **settings)
    assert json.loads(second.stdout)["replayed"] == 0


# -- reading -------------------------------------------------------------------------------------------------------


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


# -- commands ------------------------------------------------------------------------------------------------------


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


async def test_without_an_embedded_broker_a_command_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = free_port()
    for module in ("cli.reach", "cli.checks"):
        monkeypatch.setattr(f"{module}.PORT", nobody)
    ours = Settings(broker=EMBEDDED)
    with pytest.raises(SettingsError, match=rf"{nobody}.*faust -A app worker"):
        await reach(ours)
    detail, connection = await checks.broker(cast(App, SimpleNamespace(settings=ours)))
    assert "none is running" in detail
    assert connection is None


@pytest.mark.parametrize("name", ["models", "tables", "topics", "replay"])
def test_without_a_broker_a_command_ends_with_one_document_that_says_so(name: str, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    found = command(name, "--json", broker=f"kafka://{nobody}", data_dir=tmp_path, model_store=tmp_path / "store")
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert nobody in document.get("message", "") + str(document.get("error"))
    assert document.keys() >= ({name} if name in {"models", "tables"} else {"message"})


def test_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    found = command("topics", broker=f"kafka://{nobody}", data_dir=tmp_path)
    assert found.returncode == 1
    assert nobody in found.stderr
    assert "Traceback" not in found.stderr


# -- a model's life, and a table's values ------------------------------------------------------------------------------


async def test_a_version_is_promoted_shown_and_its_state_read(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    tally.publish(rig.store, "2")
    said: dict[str, Any] = {
        name.removeprefix("HOMUNCULUS_").lower(): value for name, value in worker.environment.items()
    }

    def models(*words: str) -> subprocess.CompletedProcess[str]:
        return command("--json", "models", *words, **said)

    refused = models("promote", tally.NAME, "7")
    assert refused.returncode == 1
    assert f"{tally.NAME}@7 is not in the store, which has 1, 2" in refused.stderr
    stale = models("promote", tally.NAME, "2", "--based-on", "5")
    assert "is based on revision 5" in stale.stderr
    done = models("promote", tally.NAME, "2", "--based-on", "1", "--author", "ann", "--reason", "better")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["revision"] == 2

    worker.wait_log(f"{tally.NAME}@2 answers", 30)
    shown = json.loads(models("show", tally.NAME).stdout)
    assert shown["deployment"]["author"] == "ann"
    assert shown["versions"].keys() == {"1", "2"}
    assert shown["workers"].keys() == {"a"}
    assert "no model 'nobody'" in models("show", "nobody").stderr

    one = Sent("e1", "Zoë/7", EPOCH_MS, 1.5)
    rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("predictions", 1)
    value = command("--json", "tables", "get", "sessions", one.session, **said)
    assert json.loads(value.stdout)["count"] == 1, value.stderr
    nobody = command("tables", "get", "sessions", "nobody", **said)
    assert (nobody.returncode, "Traceback" in nobody.stderr) == (1, False)
    stopped = command("tables", "get", "sessions", "x", **said | {"web_port": free_port()})
    assert "no worker answers" in stopped.stderr


@pytest.mark.parametrize("words", [("models", "promote", "m"), ("models", "shwo", "m"), ("topics", "crate")])
def test_another_action_names_those_that_there_are(words: tuple[str, ...], tmp_path: Path) -> None:
    found = command(*words, data_dir=tmp_path)
    assert found.returncode == 1
    assert f"there is `{words[0]} " in found.stderr


# -- erasing -------------------------------------------------------------------------------------------------------


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


# -- doctor --------------------------------------------------------------------------------------------------------


async def test_a_doctor_that_finds_nothing_says_so(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    tally.publish(tmp_path / "store", "1")
    found = command(
        "doctor", "--json", broker=kafka.url, topic_prefix=prefix, app_id=f"{prefix}app", data_dir=tmp_path / "data",
        model_store=tmp_path / "store", web_port=free_port(),
    )  # fmt: skip
    document = json.loads(found.stdout)
    assert found.returncode == 0, document
    assert [row["check"] for row in document["checks"]] == [
        "broker", "transactions", "rights", "topics", "device", "store", "data folder", "web",
    ]  # fmt: skip
    assert "tally@1" in next(row["detail"] for row in document["checks"] if row["check"] == "store")


async def test_a_doctor_names_each_fault_and_goes_on(tmp_path: Path) -> None:
    folder = tally.publish(tmp_path / "store", "1")
    (folder / "model.onnx").write_bytes(b"not the bytes that the manifest names")
    (tmp_path / "file").write_text("no folder")
    found = command(
        "doctor", "--json", broker=f"kafka://127.0.0.1:{free_port()}", data_dir=tmp_path / "file",
        model_store=tmp_path / "store", web_bind="0.0.0.0", web_port=free_port(),
    )  # fmt: skip
    assert found.returncode == 1
    faults = {row["check"]: row["detail"] for row in json.loads(found.stdout)["checks"] if not row["ok"]}
    assert faults.keys() == {"broker", "store", "data folder", "web"}
    assert "sha256" in faults["store"]
    assert "HOMUNCULUS_WEB_TOKEN" in faults["web"]
    assert "HOMUNCULUS_DATA_DIR" in faults["data folder"]


# -- reset ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with two partitions, and things that aren't ours."""
    app = tmp_path / "data" / "homunculus"
    for number in (0, 11):
        store = PartitionStore(app / "0" / str(number), ["sessions"], RocksMemory())
        store.write({"sessions": {b"k": b"v"}}, Meta())
        store.close()
    (app / "0" / "7").mkdir()
    (app / "0" / "7" / "holiday.jpg").write_text("precious")
    (app / "notes.txt").write_text("precious")
    return app


def test_reset_deletes_the_checkpoints_and_nothing_else(folder: Path) -> None:
    found = command("reset", "--yes", "--json", data_dir=folder.parent)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["deleted"] == ["0/0", "0/11"]
    assert sorted(path.name for path in folder.rglob("*")) == ["0", "7", "holiday.jpg", "notes.txt"]


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("", True), ("y\n", False)])
def test_reset_asks_first(folder: Path, answer: str, left: bool) -> None:
    found = command("reset", stdin=answer, data_dir=folder.parent)
    assert (folder / "0" / "11").exists() is left
    assert (found.returncode == 0) is not left
    assert "Traceback" not in found.stderr


def test_reset_is_refused_while_a_worker_has_the_folder(folder: Path) -> None:
    store = PartitionStore(folder / "0" / "11", ["sessions"], RocksMemory())
    try:
        found = command("reset", "--yes", data_dir=folder.parent)
        assert found.returncode == 1
        assert "stop the worker" in found.stderr
        assert (folder / "0" / "0" / "CURRENT").exists()
    finally:
        store.close()


def test_reset_without_anything_to_delete_is_fine(tmp_path: Path) -> None:
    assert command("reset", data_dir=tmp_path / "none").returncode == 0


# -- the list of commands ------------------------------------------------------------------------------------------


def test_agents_shows_ours_and_fausts_misleading_commands_are_gone() -> None:
    found = json.loads(command("agents", "--json").stdout)["agents"]
    assert {"agents.scoring.score", "agents.deployments.decide"} <= {row["name"] for row in found}
    assert all(row["topic"] and row["help"] for row in found)
    names = command("--help").stdout
    for gone in ("clean-versions", "model "):
        assert f"  {gone}" not in names
    for there in ("models", "tables", "topics", "replay", "reset", "state", "doctor", "worker"):
        assert f"  {there}" in names
