"""Another state in the place of the one that the changelogs have: all of it, in one transaction, or nothing.

The transaction holds the group's offsets of every input partition, as a worker's own does. A worker that starts
meanwhile waits for it, takes its transactional id after half a second, and so undoes it (engine/takeover.py): whoever
opens a partition finds the state from before or all of the new one, whenever the import was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import IllegalOperation, KafkaError

from core.errors import BackupError, FencedError, TaskError
from core.settings import Guarantee
from engine.archive import Pair
from engine.backup import both, scratch
from engine.changelog import Changelog
from engine.connection import Connection
from engine.outputs import Builders
from engine.producer import TRANSACTION_S, Member, Producer
from engine.protocol import GroupRightsRequest
from engine.rights import coordinator
from engine.schema import FORMAT
from engine.snapshot import PartitionChangelogs, Tell, changelogs
from engine.store import Meta, PartitionStore
from engine.table import Items

IMPORT_S: Final = 900
"""How long the transaction may take: what brokers allow by default (transaction.max.timeout.ms). One that nobody ends
is over after it."""
CHUNK: Final = 10_000
CHUNK_BYTES: Final = 4 << 20
"""Changes that are sent together."""
LOOK_S: Final = 0.5
DECIDED_S: Final = TRANSACTION_S + 15.0
"""Seconds after which no transaction of a worker can be open, brokers that look for them every 10 included."""
_REPLACED: Final = "replaced"
"""In the place of a session's erasure: what was there before may have been one's, and is in the changelogs still."""
_NOBODY: Final[Member] = (-1, "", None)


@dataclass(slots=True)
class Plan:
    """What one partition is to be."""

    positions: dict[str, int]
    """Source topic, as the broker names it -> next offset. One that isn't named begins at its beginning."""
    watermark: int
    values: Mapping[str, Iterable[Pair]] = field(default_factory=dict)
    """Table -> its values by ascending key; tables that aren't named are emptied."""
    versions: dict[str, int] = field(default_factory=dict)
    """Table -> the newest version of its values."""
    format: int = FORMAT
    """Of values' headers."""


@dataclass(slots=True)
class Replaced:
    """What it took, in keys."""

    written: int = 0
    deleted: int = 0
    unchanged: int = 0


class _Replacer(Producer):
    """A producer whose transaction may take minutes."""

    def __init__(self, connection: Connection) -> None:
        # Also for an application that runs at_least_once: its broker has transactions.
        super().__init__(replace(connection, guarantee=Guarantee.EXACTLY_ONCE), f"{connection.settings.app_id}-import")
        self._producer._txn_manager.transaction_timeout_ms = IMPORT_S * 1000

    async def abandon(self) -> None:
        """What was sent is undone, by us or by whoever takes our id next."""
        with suppress(KafkaError, IllegalOperation, OSError, TimeoutError, AssertionError):
            await self._end(commit=False)


def refuse_without_transactions(connection: Connection) -> None:
    """Raises BackupError where state can't be replaced as a whole."""
    if not connection.idempotent:
        raise BackupError(
            f"the broker at {connection.bootstrap} has no transactions, so state can't be replaced as a whole: this "
            "needs Apache Kafka"
        )


async def refuse_while_used(connection: Connection, tell: Tell) -> None:
    """Returns when no worker is in the group. One that was killed, or has a WORKER_ID and was stopped, stays for a
    session timeout: that is waited for. Raises BackupError."""
    patience = connection.settings.session_timeout + 2
    until = time.monotonic() + patience
    while there := await members(connection):
        if time.monotonic() > until:
            raise BackupError(f"{_named(there)} of this application: stop every worker first")
        tell(f"{_named(there)}; one that has just been stopped leaves within {patience:.0f} s")
        await asyncio.sleep(LOOK_S)


async def members(connection: Connection) -> list[str]:
    """The workers in the application's group, by client id and host."""
    client = AIOKafkaClient(**connection.options)
    try:
        await client.bootstrap()
        group = connection.settings.app_id
        node = await coordinator(client, CoordinationType.GROUP, group)
        answer = await client.send(node, GroupRightsRequest(group), group=ConnectionGroup.COORDINATION)
        [(_, _, _, _, _, found, _)] = answer.groups
        return sorted(f"{client_id} on {host.removeprefix('/')}" for _, client_id, host, _, _ in found)
    finally:
        await client.close()


async def _refuse_newcomers(connection: Connection) -> None:
    if there := await members(connection):
        raise BackupError(f"{_named(there)}, since a moment ago: nothing was changed")


def _named(workers: list[str]) -> str:
    return f"{len(workers)} worker{'s are' if len(workers) > 1 else ' is'} running ({', '.join(workers)})"


async def replace_state(
    connection: Connection, tables: list[str], plans: Mapping[int, Plan], locks: Iterable[TopicPartition], tell: Tell
) -> Replaced:
    """Makes each partition what its plan says.

    tables: those of the application, whose changelogs all exist. locks: the input partitions that exist. Raises
    BackupError, and then nothing has changed.
    """
    refuse_without_transactions(connection)
    await refuse_while_used(connection, tell)
    producer = _Replacer(connection)
    try:
        await producer.start()
        logs = {
            number: Changelog(replace(connection, guarantee=Guarantee.EXACTLY_ONCE), number, tables) for number in plans
        }
        held = {tp: plans[tp.partition].positions.get(tp.topic, 0) for tp in locks}
        await producer.begin(_NOBODY, held, [log.positions for log in logs.values()])
        try:
            await _refuse_newcomers(connection)  # now that it is locked: who joins after this look has to wait for us
            done = await _write(connection, producer, tables, plans, logs, tell)
            await _refuse_newcomers(connection)  # who runs at_least_once doesn't wait
        except BaseException:
            await asyncio.shield(producer.abandon())
            raise
        async with producer.transaction():
            markers: Builders = {}
            for number, plan in plans.items():
                logs[number].versions, logs[number].format = plan.versions, plan.format
                logs[number].erased = _REPLACED
                markers |= logs[number].marker(producer, plan.positions, plan.watermark)
            await producer.send(markers)
        return done
    except FencedError as error:
        raise BackupError("a worker or another import has started meanwhile: nothing was changed") from error
    except (TaskError, KafkaError) as error:
        raise BackupError(
            f"{error}: nothing was changed. (The broker must let a transaction take {IMPORT_S} s, its default "
            "for transaction.max.timeout.ms)"
        ) from error
    finally:
        await producer.stop()


async def _write(
    connection: Connection,
    producer: _Replacer,
    tables: list[str],
    plans: Mapping[int, Plan],
    logs: Mapping[int, Changelog],
    tell: Tell,
) -> Replaced:
    done = Replaced()
    with scratch(connection.settings) as room:
        async with changelogs(connection, tables, tell) as readers:
            for number, plan in plans.items():
                with room.store(tables) as now:
                    present = readers.of(number)
                    await _until_decided(present)
                    await _read(present, now)
                    for table in tables:
                        values = iter(plan.values.get(table, ()))
                        await _send(producer, logs[number], table, _changes(values, now.scan(table), done))
                tell(
                    f"partition {number} of {len(plans)}: {done.written:,} values written, {done.deleted:,} deleted, "
                    f"{done.unchanged:,} as they were, in all so far"
                )
    return done


async def _until_decided(logs: PartitionChangelogs) -> None:
    """What a worker has left open when it was killed may come to be seen yet."""
    until = time.monotonic() + DECIDED_S
    while topics := await logs.undecided():
        if time.monotonic() > until:
            raise BackupError(
                f"somebody's transaction is open in {', '.join(topics)} (kafka-transactions.sh find-hanging shows "
                "whose): nothing was changed"
            )
        await asyncio.sleep(LOOK_S)


async def _read(logs: PartitionChangelogs, store: PartitionStore) -> None:
    """All that a replay could ever find, whether a marker speaks of it or not."""
    await asyncio.to_thread(store.begin_restore)
    await logs.read(store, {}, await logs.ends())
    await asyncio.to_thread(store.restored, Meta())


def _changes(wanted: Iterator[Pair], there: Iterator[Pair], done: Replaced) -> Iterator[tuple[bytes, bytes | None]]:
    for key, value, present in both(wanted, there):
        if value == present:
            done.unchanged += 1
            continue
        if value is None:
            done.deleted += 1
        else:
            done.written += 1
        yield key, value


async def _send(producer: Producer, log: Changelog, table: str, changes: Iterator[tuple[bytes, bytes | None]]) -> None:
    """The next chunk is made while the one before is on its way."""
    under_way: asyncio.Task[object] | None = None
    try:
        for items in _portions(changes):
            records = log.records(producer, {table: items})
            if under_way is not None:
                await under_way
            under_way = asyncio.create_task(producer.send(records))
            await asyncio.sleep(0)
    finally:
        if under_way is not None:
            await under_way


def _portions(changes: Iterator[tuple[bytes, bytes | None]]) -> Iterator[Items]:
    items: Items = []
    size = 0
    for key, value in changes:
        items.append((key, value))
        size += len(key) + len(value or b"")
        if len(items) >= CHUNK or size >= CHUNK_BYTES:
            yield items
            items, size = [], 0
    if items:
        yield items
