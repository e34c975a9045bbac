"""What a new owner of a partition reads back: every commit that ended, and nothing of one that didn't."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from pydantic import ByteSize

from core.settings import Guarantee, Settings
from core.topics import changelog
from engine import bulk
from engine import changelog as module
from engine.admin import ensure_topics
from engine.changelog import POSITIONS, Changelog
from engine.connection import Connection, connect
from engine.producer import Member, Producer
from engine.store import Meta, PartitionStore, RocksMemory
from engine.table import Items
from engine.takeover import COMMITTED, UNCOMMITTED
from tests.kafka import Broker

TABLE = "counts"
NEW = "newer"
"""A table that only a newer release has."""
NOBODY: Member = (-1, "", None)


class Rig:
    """Partition 0 of an application with one table."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self.folder = folder

    async def owner(self, *more: str, folder: Path | None = None) -> tuple[Producer, Changelog, PartitionStore]:
        """A new owner, its changelogs replayed. more: tables beside TABLE; folder: by default an empty one."""
        producer = Producer(self.connection, f"{self.connection.settings.app_id}-0")
        await producer.start()
        tables = [TABLE, *more]
        log = Changelog(self.connection, 0, tables)
        number = sum(1 for _ in self.folder.iterdir())
        store = PartitionStore(folder or self.folder / f"store-{number}", tables, RocksMemory())
        await log.replay(store)
        return producer, log, store

    async def commit(self, producer: Producer, log: Changelog, items: Items, position: int, table: str = TABLE) -> Meta:
        positions = {"source": position}
        await producer.begin(NOBODY, {}, ())
        async with producer.transaction():
            log.note(await producer.send(log.records(producer, {table: items})))
            await producer.send(log.marker(producer, positions, position))
        return log.meta(positions, position)

    async def seen(self, log: Changelog) -> None:
        """Waits until readers of what is committed see the last commit: a transaction's end is confirmed before its
        marks are written. Whoever starts a producer waits for that by doing so."""
        if not self.connection.transactional:
            return
        options = self.connection.options
        async with AsyncExitStack() as stack:
            readers = [AIOKafkaConsumer(**options, isolation_level=level) for level in (COMMITTED, UNCOMMITTED)]
            for reader in readers:
                await reader.start()
                stack.push_async_callback(reader.stop)
            targets = log.targets([TABLE])
            async with asyncio.timeout(30):
                while len({tuple((await reader.end_offsets(targets)).values()) for reader in readers}) > 1:
                    await asyncio.sleep(0.01)

    async def half_a_commit(self, producer: Producer, log: Changelog, items: Items) -> None:
        """The table's records are sent, and the process dies before the commit ends."""
        await producer.begin(NOBODY, {}, [])
        builder = producer.new_builder()
        for key, value in items:
            builder.append(timestamp=None, key=key, value=value)
        await producer.send({log.targets([TABLE])[0]: [builder]})
        await producer.stop()


def content(store: PartitionStore) -> dict[bytes, bytes]:
    return dict(store.scan(TABLE))


@pytest.fixture(params=[Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
async def rig(broker: Broker, prefix: str, tmp_path: Path, request: pytest.FixtureRequest) -> Rig:
    bulk.install()
    settings = Settings(
        app_id=f"{prefix}app",
        topic_prefix=prefix,
        partitions=1,
        guarantee=request.param,
        max_record=ByteSize(10_000),  # answers of the broker so small that a replay needs several
    )
    connection = await connect(settings, broker.url)
    if connection.guarantee is not request.param:
        pytest.skip("this broker has no transactions")
    specs = [changelog(settings.app_id, name) for name in (TABLE, NEW, POSITIONS)]
    await ensure_topics(broker.bootstrap, specs, settings)
    return Rig(connection, tmp_path)


async def test_a_new_owner_finds_what_was_committed_with_its_positions(rig: Rig) -> None:
    producer, log, _ = await rig.owner()
    await rig.commit(producer, log, [(b"a", b"1"), (b"b", b"1")], 10)
    await rig.commit(producer, log, [(b"a", b"2"), (b"b", None)], 20)
    await producer.stop()
    _, _, store = await rig.owner()
    assert content(store) == {b"a": b"2"}
    assert store.meta.positions == {"source": 20}
    assert store.meta.watermark == 20


async def test_half_a_commit_counts_for_nothing_however_often_the_owner_dies(rig: Rig) -> None:
    producer, log, _ = await rig.owner()
    await rig.commit(producer, log, [(b"a", b"1"), (b"c", b"7")], 10)
    await rig.half_a_commit(producer, log, [(b"a", b"2"), (b"new", b"1")])

    producer, log, store = await rig.owner()
    assert content(store) == {b"a": b"1", b"c": b"7"}
    assert store.meta.positions == {"source": 10}
    # The next commit ends: what the dead one left must not ride along with it.
    undone: Items = [(key, store.get(TABLE, key)) for keys in log.orphans.values() for key in keys]
    await rig.commit(producer, log, [*undone, (b"c", b"8")], 11)
    await rig.half_a_commit(producer, log, [(b"a", b"3")])

    _, _, store = await rig.owner()
    assert content(store) == {b"a": b"1", b"c": b"8"}
    assert store.meta.positions == {"source": 11}


async def test_a_folder_that_stands_at_an_older_commit_reads_only_the_rest(rig: Rig) -> None:
    producer, log, store = await rig.owner()
    meta = await rig.commit(producer, log, [(b"a", b"1")], 10)
    store.write({TABLE: {b"a": b"1"}}, meta)
    await rig.commit(producer, log, [(b"b", b"1")], 20)
    await rig.seen(log)
    assert await Changelog(rig.connection, 0, [TABLE]).replay(store) == 1
    assert content(store) == {b"a": b"1", b"b": b"1"}
    assert store.meta.positions == {"source": 20}
    await producer.stop()


async def test_a_folder_with_a_commit_that_the_broker_has_undone_is_rebuilt(rig: Rig) -> None:
    """A restarted broker can undo what it had confirmed. The mark of the abort lies behind the records, so the
    changelog seems to have all that the folder has."""
    producer, log, store = await rig.owner()
    confirmed = await rig.commit(producer, log, [(b"a", b"1")], 10)
    await rig.half_a_commit(producer, log, [(b"a", b"2")])
    behind = confirmed.changelogs[TABLE] + (2 if rig.connection.transactional else 1)  # a commit's own mark takes one
    store.write({TABLE: {b"a": b"2"}}, Meta(confirmed.incarnation, {"source": 20}, {TABLE: behind}, 20))
    folder = store.path
    store.close()
    _, _, store = await rig.owner(folder=folder)
    assert content(store) == {b"a": b"1"}
    assert store.meta.positions == {"source": 10}


@pytest.mark.parametrize("meta", [Meta(incarnation="another life"), Meta(changelogs={TABLE: 10_000})])
async def test_a_folder_of_changelogs_that_are_gone_is_rebuilt(rig: Rig, meta: Meta) -> None:
    producer, log, store = await rig.owner()
    known = await rig.commit(producer, log, [(b"a", b"1")], 10)
    foreign = Meta(meta.incarnation or known.incarnation, {"source": 99}, meta.changelogs, 99)
    store.write({TABLE: {b"foreign": b"1"}}, foreign)
    await rig.seen(log)
    await Changelog(rig.connection, 0, [TABLE]).replay(store)
    assert content(store) == {b"a": b"1"}
    assert store.meta.positions == {"source": 10}
    await producer.stop()


async def test_a_long_replay_in_bulk_gives_the_same_as_a_short_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, log, _ = await rig.owner()
    for n in range(5):
        items: Items = [(b"k%d" % k, b"%d" % n * 100 if k % (n + 2) else None) for k in range(300)]
        await rig.commit(producer, log, items, n)
    await producer.stop()
    _, _, short = await rig.owner()
    monkeypatch.setattr(module, "LONG", 100)
    monkeypatch.setattr(module, "FETCH", 1)
    _, _, long = await rig.owner()
    assert content(long) == content(short) == {b"k%d" % k: b"4" * 100 for k in range(300) if k % 6}
    assert long.meta == short.meta


@pytest.mark.parametrize("first", list(Guarantee))
async def test_state_outlives_a_change_of_guarantee(
    kafka: Broker, prefix: str, tmp_path: Path, first: Guarantee
) -> None:
    second = next(other for other in Guarantee if other is not first)
    rigs = []
    for guarantee in (first, second):
        settings = Settings(app_id=f"{prefix}app", topic_prefix=prefix, partitions=1, guarantee=guarantee)
        rigs.append(Rig(await connect(settings, kafka.url), tmp_path))
    bulk.install()
    specs = [changelog(f"{prefix}app", name) for name in (TABLE, POSITIONS)]
    await ensure_topics(kafka.bootstrap, specs, rigs[0].connection.settings)
    before, after = rigs
    producer, log, _ = await before.owner()
    await before.commit(producer, log, [(b"a", b"1"), (b"b", b"2")], 10)
    await before.half_a_commit(producer, log, [(b"a", b"9"), (b"new", b"1")])
    if first is Guarantee.EXACTLY_ONCE:
        await (await before.owner())[0].stop()  # what ends the dead one's transaction; else it times out
    for rig in (after, before):
        producer, log, store = await rig.owner()
        assert content(store) == {b"a": b"1", b"b": b"2"}
        assert store.meta.positions == {"source": 10}
        undone: Items = [(key, store.get(TABLE, key)) for keys in log.orphans.values() for key in keys]
        await rig.commit(producer, log, undone, 10)
        await producer.stop()


async def test_what_a_newer_release_keeps_is_left_as_it_was_by_an_older_one(rig: Rig, tmp_path: Path) -> None:
    producer, log, store = await rig.owner(NEW)
    log.versions[NEW] = 2
    meta = await rig.commit(producer, log, [(b"a", b"1")], 10, NEW)
    store.write({NEW: {b"a": b"1"}}, meta)
    await rig.commit(producer, log, [(b"b", b"2")], 20, NEW)
    await producer.stop()
    store.close()

    producer, log, older = await rig.owner(folder=store.path)
    assert log.versions == {NEW: 2}
    meta = await rig.commit(producer, log, [(b"a", b"3")], 30)
    older.write({TABLE: {b"a": b"3"}}, meta)
    await producer.stop()
    older.close()

    for folder in (store.path, tmp_path / "empty"):
        producer, log, newer = await rig.owner(NEW, folder=folder)
        assert dict(newer.scan(NEW)) == {b"a": b"1", b"b": b"2"}
        assert content(newer) == {b"a": b"3"}
        assert (log.versions, log.orphans) == ({NEW: 2}, {})
        await producer.stop()


async def test_the_very_first_commit_counts_for_nothing_when_its_owner_dies_in_it(rig: Rig) -> None:
    producer, log, _ = await rig.owner()
    await rig.half_a_commit(producer, log, [(b"a", b"1")])
    producer, log, store = await rig.owner()
    assert content(store) == {}
    assert store.meta.positions == {}
    await producer.stop()
