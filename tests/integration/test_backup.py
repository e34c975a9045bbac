"""State into a file and back: exact beside live commits, all or nothing on the way back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

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
from engine.publisher import partition_of
from engine.restore import Plan, replace_state
from engine.store import PartitionStore, RocksMemory
from tests.integration.test_event_time import LATENESS_MS, Clicks, assert_as_recounted
from tests.kafka import Broker
from tests.rig import Rig
from tests.stream import Publisher
from tests.worker import ROOT, Worker, until

NOBODY: Final[Member] = (-1, "", None)
TABLES: Final = ["one", "two"]
APP: Final = "tests.clumsy.app"


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


# -- workers and commands ------------------------------------------------------------------------------------------


class Shop:
    """Orders for an application that adds them up; its workers, and the commands about it."""

    def __init__(self, rig: Rig, sessions: int = 40, app: str = APP) -> None:
        self.rig = rig
        self.app = app
        self.sessions = sessions
        self.totals: Counter[str] = Counter()
        self.count = 0
        self.file = rig.folder / "state.zip"

    def worker(self, name: str = "a", **settings: Any) -> Worker:
        return self.rig.worker(name, app=self.app, session_timeout=3, **settings).start().wait_log("is open")

    def order(self, count: int) -> None:
        for _ in range(count):
            session = f"s{self.count % self.sessions}"
            amount = self.count % 7
            self.totals[session] += amount
            order = {"id": f"o{self.count}", "session": session, "amount": amount}
            self.rig.publisher.send(self.rig.topic("orders"), session.encode(), json.dumps(order).encode())
            self.count += 1
        self.rig.publisher.flush()

    def command(self, *words: str, app_id: str | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
        """`faust -A APP WORDS`."""
        return subprocess.run(self._words(*words), timeout=120, check=False, **self._options(app_id, settings))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """The same, under way."""
        return subprocess.Popen(self._words(*words), **self._options(None, {}))

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "faust", "-A", self.app, *words]

    def _options(self, app_id: str | None, settings: dict[str, Any]) -> dict[str, Any]:
        values = {
            "broker": self.rig.broker.url,
            "app_id": app_id or f"{self.rig.prefix}app",
            "topic_prefix": self.rig.prefix,
            "partitions": self.rig.partitions,
            "data_dir": self.rig.folder / "data-command",
            "model_store": self.rig.store,
            "session_timeout": 3,
        } | settings
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")}
        environment |= {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in values.items()}
        return {
            "cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL, "text": True, "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }  # fmt: skip

    def done(self, *words: str, **settings: Any) -> dict[str, Any]:
        """The document of a command that succeeded."""
        found = self.command("state", *words, "--json", **settings)
        assert found.returncode == 0, found.stdout + found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def refused(self, *words: str, **settings: Any) -> str:
        """What a command said that failed."""
        found = self.command("state", *words, **settings)
        assert found.returncode == 1, found.stdout + found.stderr
        assert "Traceback" not in found.stderr, found.stderr
        return found.stdout + found.stderr

    def shown(self) -> dict[str, int]:
        """The totals of all workers' views."""
        items: dict[str, int] = {}
        for worker in self.rig.running():
            answer = worker.get("/tables/totals?limit=1000")
            if answer.status == 200:
                items |= {item["key"]: item["value"] for item in answer.json()["items"]}
        return items

    def wait_exact(self) -> None:
        """Every order is in its session's total, once."""
        what = "the totals are those of a recount"
        until(lambda: self.shown() == dict(self.totals), 60, what=what, alive=self.rig.running())


@pytest.fixture
def shop(rig: Rig) -> Shop:
    return Shop(rig)


@pytest.mark.long
def test_an_imported_state_goes_on_where_the_file_was_made(shop: Shop) -> None:
    worker = shop.worker()
    shop.order(2000)
    shop.wait_exact()
    saved = shop.done("export", str(shop.file))
    assert saved["records"] >= 40
    shop.order(2000)
    shop.wait_exact()
    assert "stop every worker first" in shop.refused("import", str(shop.file), "--yes")
    assert worker.terminate() == 0
    assert "only with --yes" in shop.refused("import", str(shop.file), "--json")
    assert "Aborted" in shop.command("state", "import", str(shop.file)).stderr
    assert shop.done("import", str(shop.file), "--yes")["imported"]
    assert shop.done("verify", str(shop.file))["ok"]
    worker.start().wait_log("is open")
    shop.wait_exact()
    shop.order(500)
    shop.wait_exact()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["killed", "overtaken by a worker"])
def test_an_import_that_does_not_end_leaves_the_state_from_before(rig: Rig, end: str) -> None:
    shop = Shop(rig, sessions=60_000)
    worker = shop.worker()
    shop.order(60_000)
    wait_committed(shop, worker)
    shop.done("export", str(shop.file))
    shop.order(60_000)
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(rig.folder / "later.zip"))
    changelog_topic = f"{rig.prefix}{rig.prefix}app-totals-changelog"
    before = written(rig, changelog_topic)
    importing = shop.begin("state", "import", str(shop.file), "--yes")
    until(lambda: written(rig, changelog_topic) > before + 1000, 60, what="the import is writing")
    importing.send_signal(signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    worker.start()
    until(lambda: worker.log(None).count("is open") >= 2 * rig.partitions, 60, what="it opens", alive=[worker])
    if end != "killed":
        importing.send_signal(signal.SIGCONT)
    said = "".join(importing.communicate(timeout=60))
    assert importing.returncode == (-signal.SIGKILL if end == "killed" else 1), f"it was too quick: {said}"
    assert end == "killed" or "nothing was changed" in said
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    assert shop.done("verify", str(rig.folder / "later.zip"))["ok"], "the state isn't the one from before"
    assert shop.done("import", str(shop.file), "--yes")["imported"]
    worker.start()
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(rig.folder / "last.zip"))
    assert totals_in(rig.folder / "last.zip") == shop.totals


def wait_committed(shop: Shop, worker: Worker, topic: str = "orders") -> None:
    """Every record is part of a commit, as the group's offsets say."""
    consumer = Consumer({"bootstrap.servers": shop.rig.broker.bootstrap, "group.id": f"{shop.rig.prefix}app"})
    places = [Place(shop.rig.topic(topic), number) for number in range(shop.rig.partitions)]

    def lag() -> int:
        ends = [consumer.get_watermark_offsets(place, 10)[1] for place in places]
        noted = [max(place.offset, 0) for place in consumer.committed(places, 10)]
        return sum(ends) - sum(noted)

    try:
        until(lambda: lag() == 0, 90, what="all is committed", alive=[worker])
    finally:
        consumer.close()


def more_partitions(rig: Rig, count: int) -> None:
    """The rig's topics have more; producers that have been running don't know yet."""
    rig.partitions = count
    rig.publisher = Publisher(rig.broker.bootstrap)


def written(rig: Rig, topic: str) -> int:
    """Offsets of a topic, decided or not."""
    consumer = Consumer(
        {"bootstrap.servers": rig.broker.bootstrap, "group.id": "nobody", "isolation.level": "read_uncommitted"}
    )
    try:
        return sum(consumer.get_watermark_offsets(Place(topic, n), 10)[1] for n in range(rig.partitions))
    finally:
        consumer.close()


def totals_in(file: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    with Archive(file) as archive:
        for one in archive.manifest.state:
            for key, value in archive.pairs("totals", one.partition):
                found[key.decode()] = json.loads(value[1:])
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_live_application_gets_more_partitions(rig: Rig) -> None:
    shop = Shop(rig, sessions=300)
    worker = shop.worker()
    shop.order(3000)
    shop.wait_exact()
    assert worker.terminate() == 0
    shop.order(10)
    shop.done("export", str(rig.folder / "early.zip"))
    more = {"partitions": 12}
    assert "hasn't seen" in shop.refused("import", str(rig.folder / "early.zip"), "--rekey", "--yes", **more)
    worker.start()
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    assert "--rekey places" in shop.refused("import", str(shop.file), "--yes", **more)
    done = shop.done("import", str(shop.file), "--rekey", "--yes", **more)
    assert done["partitions"] == 12
    more_partitions(rig, 12)
    again = shop.done("export", str(rig.folder / "after.zip"))
    assert totals_in(rig.folder / "after.zip") == shop.totals
    with Archive(rig.folder / "after.zip") as archive:
        for number in range(12):
            for key, _ in archive.pairs("totals", number):
                assert partition_of(key, 12) == number
    assert again["partitions"] == 12
    shop.worker("b")
    shop.order(3000)
    shop.wait_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_windows_timers_and_patterns_move_with_their_sessions(rig: Rig) -> None:
    shop, clicks = Shop(rig, app="tests.timely.app"), Clicks(rig, 1200)
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS / 1e3}
    worker = shop.worker(**late)
    clicks.send(600)
    wait_committed(shop, worker, "clicks")
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    assert shop.done("import", str(shop.file), "--rekey", "--yes", partitions=8, **late)["written"] > 30
    more_partitions(rig, 8)
    worker = shop.worker("b", **late)
    clicks.send(600)
    clicks.end()
    assert_as_recounted(rig, clicks, [worker])


@pytest.mark.long
def test_files_that_do_not_fit_are_refused_with_what_would(shop: Shop) -> None:
    worker = shop.worker()
    shop.order(200)
    shop.wait_exact()
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    other = f"{shop.rig.prefix}other"
    said = shop.refused("import", str(shop.file), "--yes", app_id=other)
    assert f"--application {shop.rig.prefix}app" in said
    assert shop.done("import", str(shop.file), "--yes", "--application", f"{shop.rig.prefix}app", app_id=other)
    copy = shop.rig.worker("c", app=APP, app_id=other).start()
    shop.order(100)
    shop.wait_exact()
    assert copy.terminate() == 0
    broken = shop.rig.folder / "broken.zip"
    broken.write_bytes(shop.file.read_bytes()[:-100])
    for command in ("verify", "import"):
        shop.refused(command, str(broken))
    assert "can't be read" in shop.refused("verify", str(shop.rig.folder / "none.zip"))
