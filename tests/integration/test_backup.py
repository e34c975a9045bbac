"""State into a file and back: exact beside live commits, all or nothing on the way back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from core.errors import BackupError
from core.settings import Guarantee, Settings
from core.topics import changelog
from engine import bulk
from engine.admin import TopicAdmin, ensure_topics
from engine.archive import Archive
from engine.backup import check, compare, export
from engine.changelog import POSITIONS, Changelog
from engine.connection import Connection, connect
from engine.outputs import Builders
from engine.producer import Member, Producer
from engine.restore import Plan, replace_state
from engine.store import PartitionStore, RocksMemory
from tests.kafka import Broker

NOBODY: Final[Member] = (-1, "", None)
TABLES: Final = ["one", "two"]


def quiet(line: str) -> None:
    """Nobody follows the progress."""


class Application:
    """Two partitions of an application with two tables, committed to as a worker does."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self.folder = folder
        self.file = folder / "state.zip"
        self.commits = [0, 0]

    async def further(self) -> None:
        """Returns after some more commits of each partition."""
        goal = [count + 5 for count in self.commits]
        async with asyncio.timeout(30):
            while any(count < wanted for count, wanted in zip(self.commits, goal, strict=True)):
                await asyncio.sleep(0.01)

    async def owner(self, partition: int) -> tuple[Producer, Changelog, PartitionStore]:
        producer = Producer(self.connection, f"{self.connection.settings.app_id}-{partition}")
        await producer.start()
        log = Changelog(self.connection, partition, TABLES)
        number = sum(1 for _ in self.folder.iterdir())
        store = PartitionStore(self.folder / f"store-{number}", TABLES, RocksMemory())
        await log.replay(store)
        return producer, log, store

    async def commit(self, producer: Producer, log: Changelog, values: dict[str, Any], position: int) -> None:
        await producer.begin(NOBODY, {}, ())
        async with producer.transaction():
            records: Builders = {}
            for table, items in values.items():
                records |= log.records(producer, {table: list(items.items())})
            if self.connection.transactional:
                log_marker = log.marker(producer, {"in": position}, position)
                log.note(await producer.send(records | log_marker))
            else:
                log.note(await producer.send(records))
                await producer.send(log.marker(producer, {"in": position}, position))
        log.meta({"in": position}, position)

    async def committing(self, partition: int, stop: asyncio.Event) -> None:
        """Commits as fast as it goes; every value is the number of its commit, and so is the position."""
        producer, log, _ = await self.owner(partition)
        number = 0
        while not stop.is_set():
            number += 1
            value = b"%d" % number
            some = {b"every": value, b"k%d" % (number % 50): value}
            await self.commit(producer, log, {"one": some, "two": some if number % 3 else {}}, number)
            self.commits[partition] = number
        await producer.stop()

    async def content(self, partition: int) -> tuple[dict[str, dict[bytes, bytes]], dict[str, int], int]:
        """What a worker would find."""
        producer, _, store = await self.owner(partition)
        await producer.stop()
        try:
            return {t: dict(store.scan(t)) for t in TABLES}, store.meta.positions, store.meta.watermark
        finally:
            store.close()


async def application(broker: Broker, prefix: str, folder: Path, guarantee: Guarantee) -> Application:
    bulk.install()
    settings = Settings(
        broker=broker.url, app_id=f"{prefix}app", topic_prefix=prefix, partitions=2, guarantee=guarantee,
        data_dir=folder / "data", session_timeout=1,
    )  # fmt: skip
    connection = await connect(settings, broker.url)
    specs = [changelog(settings.app_id, name) for name in (*TABLES, POSITIONS)]
    await ensure_topics(broker.bootstrap, specs, settings)
    return Application(connection, folder)


@pytest.fixture
async def app(kafka: Broker, prefix: str, tmp_path: Path) -> Application:
    return await application(kafka, prefix, tmp_path, Guarantee.EXACTLY_ONCE)


@contextlib.asynccontextmanager
async def busy(app: Application) -> AsyncIterator[None]:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(app.committing(partition, stop)) for partition in range(2)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def assert_one_commit(archive: Archive, partition: int) -> int:
    """The values are those of one commit, which is the position's."""
    at = archive.manifest.state[partition].positions.get("in", 0)
    for table in TABLES:
        last = [n for n in range(1, at + 1) if table == "one" or n % 3]
        expected = {b"k%d" % (n % 50): b"%d" % n for n in last} | ({b"every": b"%d" % last[-1]} if last else {})
        assert dict(archive.pairs(table, partition)) == expected, (table, at)
    return at


@pytest.mark.parametrize(
    ("guarantee", "files"),
    [
        pytest.param(Guarantee.EXACTLY_ONCE, 2, id="exactly once"),
        pytest.param(Guarantee.AT_LEAST_ONCE, 2, id="at least once"),
        pytest.param(Guarantee.EXACTLY_ONCE, 30, id="often", marks=pytest.mark.long),
    ],
)
async def test_a_file_has_the_state_of_one_commit_however_fast_they_follow_each_other(
    kafka: Broker, prefix: str, tmp_path: Path, guarantee: Guarantee, files: int
) -> None:
    app = await application(kafka, prefix, tmp_path, guarantee)
    seen = 0
    async with busy(app):
        for number in range(files):
            await app.further()
            file = tmp_path / f"{number}.zip"
            await export(app.connection, TABLES, [], file, quiet)
            with Archive(file) as archive:
                check(archive, quiet)
                reached = sum(assert_one_commit(archive, partition) for partition in range(2))
                assert reached > seen
                seen = reached
                found = await compare(app.connection, archive, quiet)
                assert found.ok, found
                assert found.same + found.overwritten == archive.manifest.records
                assert not found.not_compared


async def test_what_was_saved_comes_back_and_nothing_else(app: Application) -> None:
    for partition in range(2):
        producer, log, _ = await app.owner(partition)
        saved = {"one": {b"a": b"1", b"b": b"2"}, "two": {b"c": b"%d" % partition}}
        log.versions["one"] = 2  # a newer release's values: who knows only the first version must not open them
        await app.commit(producer, log, saved, 10 + partition)
        await producer.stop()
    manifest = await export(app.connection, TABLES, [], app.file, quiet)
    assert app.file.stat().st_mode & 0o777 == 0o600
    assert manifest.records == 6
    for partition in range(2):
        producer, log, _ = await app.owner(partition)
        await app.commit(producer, log, {"one": {b"a": b"9", b"b": None, b"new": b"9"}, "two": {b"c": b"9"}}, 99)
        await producer.stop()
    with Archive(app.file) as archive:
        assert (await compare(app.connection, archive, quiet)).same == 6
        plans = {
            one.partition: Plan(
                one.positions, one.watermark, {t: archive.pairs(t, one.partition) for t in TABLES}, one.versions
            )
            for one in archive.manifest.state
        }
        done = await replace_state(app.connection, TABLES, plans, [], quiet)
        assert (done.written, done.deleted, done.unchanged) == (6, 2, 0)
        assert (await compare(app.connection, archive, quiet)).same == 6
    for partition in range(2):
        values, positions, watermark = await app.content(partition)
        assert values == {"one": {b"a": b"1", b"b": b"2"}, "two": {b"c": b"%d" % partition}}
        assert positions == {"in": 10 + partition}
        assert watermark == 10 + partition
        producer, log, _ = await app.owner(partition)
        await producer.stop()
        assert log.versions == {"one": 2}


async def test_a_changelog_that_says_something_else_is_found(app: Application) -> None:
    producer, log, _ = await app.owner(0)
    await app.commit(producer, log, {"one": {b"a": b"1", b"b": b"2"}}, 10)
    await export(app.connection, TABLES, [], app.file, quiet)
    with Archive(app.file) as archive, pytest.MonkeyPatch.context() as patch:
        pairs = {("one", 0): [(b"a", b"1"), (b"b", b"3"), (b"c", b"4")]}
        patch.setattr(Archive, "pairs", lambda self, table, number: iter(pairs.get((table, number), [])))
        found = await compare(app.connection, archive, quiet)
    assert (found.same, found.different, found.missing, found.ok) == (1, 1, 1, False)
    await producer.stop()


async def test_what_compaction_has_taken_is_counted_and_no_difference(app: Application) -> None:
    producer, log, _ = await app.owner(0)
    await app.commit(producer, log, {"one": {b"a": b"1", b"b": b"2"}}, 10)
    await export(app.connection, TABLES, [], app.file, quiet)
    await app.commit(producer, log, {"one": {b"a": b"3"}}, 20)
    await producer.stop()
    old = log.targets(["one"])[0]
    async with TopicAdmin(app.connection.bootstrap) as admin:  # what the log cleaner does to a, and never does to b
        anyhow = ConfigResource(ConfigResourceType.TOPIC, old.topic, {"cleanup.policy": "delete"})
        await admin.client.alter_configs([anyhow])
        await admin.client.delete_records({old: RecordsToDelete(before_offset=2)})
    with Archive(app.file) as archive:
        found = await compare(app.connection, archive, quiet)
    assert (found.same, found.overwritten, found.missing) == (0, 1, 1)
    assert found.examples == ["missing: 'b' of one/0"]


async def test_a_name_that_is_taken_and_an_application_that_is_not_there_are_told(app: Application) -> None:
    app.file.write_text("precious")
    with pytest.raises(BackupError, match="choose another name"):
        await export(app.connection, TABLES, [], app.file, quiet)
    assert app.file.read_text() == "precious"
    other = app.connection.settings.model_copy(update={"app_id": "nobody"})
    nobody = Connection(other, app.connection.bootstrap, {}, Guarantee.EXACTLY_ONCE, True)
    with pytest.raises(BackupError, match="no worker of application 'nobody'"):
        await export(nobody, TABLES, [], app.folder / "other.zip", quiet)
    assert {path.name for path in app.folder.iterdir()} == {"state.zip"}


async def test_a_full_disk_leaves_no_file(app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, log, _ = await app.owner(0)
    await app.commit(producer, log, {"one": {b"a": b"1"}}, 10)
    await producer.stop()
    full = OSError(28, "No space left on device")

    def write(*_: Any) -> None:
        raise full

    monkeypatch.setattr("engine.archive.ArchiveWriter.part", write)
    with pytest.raises(BackupError, match="the disk is full"):
        await export(app.connection, TABLES, [], app.file, quiet)
    assert not [path for path in app.folder.iterdir() if "zip" in path.name]
    assert not list((app.folder / "data").iterdir())
