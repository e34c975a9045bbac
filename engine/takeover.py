"""What a former owner left undecided is decided before a new one reads anything.

Every transaction of a worker holds the group's offsets of the partitions that it writes for, and only the partition's
owner is let do so. A new owner therefore waits until the group's offsets are stable and what stands in the changelogs
is decided. Nearly always that is at once: who lets go of a partition commits first. Where it isn't, a worker has died
or hangs in the middle of a transaction; its transactional id is taken from it, which aborts what is open: at once if
the group has thrown it out, else after a moment in which it may still end what it does.

And there are transactions whose markers a broker forgot when it stopped. Seen on Kafka 4.4 (one broker, stopped under
load, 3 times in 50): the coordinator has logged CompleteCommit, but in some or all partitions the marker is missing. If
its producer has begun another one by then, the abort of that one covers it (engine/changelog.py). Else what
lies behind is invisible to read_committed readers, and the next commit of the same producer makes it visible, decided
or not. They are ended as their coordinator says, which knows until the producer's next start: its worker has been told
so, and in other partitions it may have been seen. Where no coordinator knows, as the positions say: committed if the
newest positions record is visible, else aborted. Where the marker is missing in the group's offsets, nobody would ever
get a lock again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, NoError, TopicAuthorizationFailedError, for_code

from core.errors import TaskError
from engine.connection import Connection
from engine.deadline import within
from engine.producer import Producer
from engine.protocol import (
    UNSTABLE_OFFSET_COMMIT,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    GroupRightsRequest,
    ListTransactionsRequest,
    StableOffsetFetchRequest,
)

log = logging.getLogger(__name__)

GRACE_S: Final = 0.5
"""A member's transaction that is about to end has this long; then its id is taken from its producer."""
HANGING_S: Final = 1.5
"""What is undecided after so long has no producer that could end it."""
GIVE_UP_S: Final = 4.0
LOOK_S: Final = 0.02
STOP_S: Final = 5.0
LOOK_BACK: Final = 100

UNCOMMITTED: Final = "read_uncommitted"
COMMITTED: Final = "read_committed"
OFFSETS: Final = "__consumer_offsets"
"""Where groups' offsets are, and so our transactions' locks."""
ONGOING: Final = "Ongoing"
"""A transaction that its coordinator knows to be open."""
DECIDED: Final = {"PrepareCommit": True, "CompleteCommit": True, "PrepareAbort": False, "CompleteAbort": False}
"""States of a transaction whose end its coordinator has logged; True: committed."""

EndOwn = Callable[[Iterable[TopicPartition], bool], Awaitable[None]]
"""Writes markers to partitions in the name of this worker's own producer; True commits."""


class _Transaction(NamedTuple):
    """What a coordinator says of a transactional id."""

    producer: int
    epoch: int
    state: str
    partitions: frozenset[TopicPartition]


class Takeover:
    """One for the worker: its tasks ask it about their partitions when they open."""

    def __init__(self, connection: Connection, consumer: AIOKafkaConsumer, own_id: str, end_own: EndOwn) -> None:
        """consumer: the group's."""
        self._connection = connection
        self._member = consumer
        self._own_id = own_id
        self._end_own = end_own
        self._readers: dict[str, asyncio.Task[AIOKafkaConsumer]] = {}
        """By isolation level. The group's consumer would be slower: a question waits behind its open fetch."""
        self._fencing: dict[str, asyncio.Task[None]] = {}
        self._acting = asyncio.Lock()
        """Held in another one's name: two at a time would abort each other's work."""
        self._verdicts: dict[tuple[int, int], bool] = {}
        """How the last transaction of a producer id and epoch has ended, as its coordinator had it."""

    async def decided(
        self,
        sources: Sequence[TopicPartition],
        positions: TopicPartition,
        changelogs: Iterable[TopicPartition],
        outputs: Iterable[TopicPartition],
    ) -> None:
        """Returns when nothing of a former owner can appear in a partition any more.

        sources: the input's partitions; positions: the changelog of markers; changelogs: those of tables. Outputs are
        decided as far as we can: others may write there. Raises KafkaError, TaskError.
        """
        await self._until_stable(sources, positions)
        ours = {positions, *changelogs}
        targets = [*ours, *outputs]
        written = await _ends(await self._reader(UNCOMMITTED), targets)
        ended = False
        async for waited in self._pressed(positions):
            stable = await _ends(await self._reader(COMMITTED), targets)
            hanging = [tp for tp in targets if stable[tp] < written[tp]]
            if not hanging or (ended and waited > GIVE_UP_S and ours.isdisjoint(hanging)):
                return
            if waited > GIVE_UP_S:
                raise TaskError(
                    f"partition {positions.partition}: somebody's transaction is open in "
                    f"{', '.join(sorted(tp.topic for tp in hanging))} (kafka-transactions.sh find-hanging shows whose)"
                )
            if waited > HANGING_S and not ended:
                ended = True
                await self._end_hanging(hanging, positions)

    async def _until_stable(self, sources: Sequence[TopicPartition], positions: TopicPartition) -> None:
        ended = False
        async for waited in self._pressed(positions):
            if not await self._unstable(sources):
                return
            if waited > GIVE_UP_S:
                raise TaskError(
                    f"partition {positions.partition}: somebody's transaction holds the group's offsets, and does not "
                    f"end (kafka-transactions.sh find-hanging --topic {OFFSETS} shows whose)"
                )
            if waited > HANGING_S and not ended:
                ended = True
                await self._end_locks(positions.partition)

    async def _pressed(self, positions: TopicPartition) -> AsyncIterator[float]:
        """The seconds of waiting so far, as often as it is worth a look. In between ids are taken from those who keep
        us waiting."""
        began = time.monotonic()
        yield 0.0
        await self._fence_writers_of(positions, spared=await self._members())
        while True:
            waited = time.monotonic() - began
            yield waited
            if waited > GRACE_S:
                await self._fence_writers_of(positions)
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Disconnects."""
        for task in (*self._readers.values(), *self._fencing.values()):
            task.cancel()
        for task in self._readers.values():
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await _stop(task.result())

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _unstable(self, sources: Sequence[TopicPartition]) -> bool:
        request = StableOffsetFetchRequest(self._connection.settings.app_id, sources)
        answer = await self._member._coordinator._send_req(request)
        codes = {answer.error_code, *(p[4] for _, partitions, _ in answer.topics for p in partitions)}
        for code in codes - {UNSTABLE_OFFSET_COMMIT}:
            if (error := for_code(code)) is not NoError:
                raise error(self._connection.settings.app_id)
        return UNSTABLE_OFFSET_COMMIT in codes

    async def _members(self) -> set[str]:
        """Transactional ids of the group's members: a worker's consumer goes by the same name."""
        answer = await self._member._coordinator._send_req(GroupRightsRequest(self._connection.settings.app_id))
        return {client_id for _, _, _, _, _, members, _ in answer.groups for _, client_id, *_ in members}

    async def _reader(self, isolation: str) -> AIOKafkaConsumer:
        task = self._readers.get(isolation)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._readers[isolation] = asyncio.create_task(_started(self._connection, isolation))
        return await asyncio.shield(task)

    async def note_verdicts(self) -> None:
        """A producer that starts makes its coordinator forget how its last transaction ended: this comes first.

        Raises TaskError.
        """
        try:
            await self._transactions()
        except (KafkaError, OSError) as error:
            raise TaskError(f"the broker did not take a write: {error!r}") from error

    async def _transactions(self) -> dict[str, _Transaction]:
        """What is known under our application's transactional ids.

        Another application's may be among them, where its name begins like ours.
        """
        ours = f"{self._connection.settings.app_id}-"
        client = (await self._reader(UNCOMMITTED))._client
        found = {}
        for node in [broker.nodeId for broker in client.cluster.brokers()]:
            listed = await client.send(node, ListTransactionsRequest())
            names = [name for name, *_ in listed.transactions if name.startswith(ours)]
            described = await client.send(node, DescribeTransactionsRequest(names)) if names else None
            for code, name, state, _, _, producer, epoch, topics, _ in described.transactions if described else ():
                if for_code(code) is NoError:
                    partitions = frozenset(TopicPartition(topic, n) for topic, numbers, _ in topics for n in numbers)
                    found[name] = _Transaction(producer, epoch, state, partitions)
                    if state in DECIDED:
                        self._verdicts[producer, epoch] = DECIDED[state]
        return found

    async def _others(self) -> dict[str, _Transaction]:
        return {name: one for name, one in (await self._transactions()).items() if name != self._own_id}

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def _fence_writers_of(self, positions: TopicPartition, spared: Collection[str] = ()) -> None:
        for transactional_id, transaction in (await self._others()).items():
            if positions not in transaction.partitions or transactional_id in spared:
                continue
            if transactional_id not in self._fencing:
                log.warning(
                    "Partition %d: %s left a transaction open; it is taken from it",
                    positions.partition,
                    transactional_id,
                )
                task = asyncio.create_task(self._fence(transactional_id))
                self._fencing[transactional_id] = task
            task = self._fencing[transactional_id]
            await asyncio.wait([task])
            self._fencing.pop(transactional_id, None)
            task.result()

    async def _fence(self, transactional_id: str) -> None:
        async with self._acting:
            producer = Producer(self._connection, transactional_id)
            try:
                await producer.start()
            finally:
                await producer.stop()

    async def _end_hanging(self, hanging: list[TopicPartition], positions: TopicPartition) -> None:
        visible = await self._newest_is_visible(positions)
        transactions = await self._others()
        owners = {transaction.producer: name for name, transaction in transactions.items()}
        for (number, epoch), partitions in (await self._open_producers(hanging)).items():
            owner = owners.get(number)
            if owner is not None and transactions[owner].state == ONGOING:
                continue  # its coordinator knows of it, and it has nothing of our positions: another application's
            commit = self._verdicts.get((number, epoch), visible)
            log.warning(
                "Partition %d: the broker left a transaction open in %s; it is %s, as its %s",
                positions.partition,
                ", ".join(sorted(tp.topic for tp in partitions)),
                "committed" if commit else "aborted",
                "coordinator has it" if (number, epoch) in self._verdicts else "positions say",
            )
            if owner is None:
                await self._end_own(partitions, commit)
            else:
                await self._end_in_the_name_of(owner, partitions, commit)

    async def _end_locks(self, partition: int) -> None:
        """A marker that is missing in the group's offsets alone. What they say is read by nobody, so it is aborted."""
        log.warning("Partition %d: the broker left a transaction open in %s; it is aborted", partition, OFFSETS)
        await self._end_own((), False)
        client = (await self._reader(UNCOMMITTED))._client
        await _known(client, [OFFSETS])
        numbers = client.cluster.partitions_for_topic(OFFSETS) or ()
        holders = await self._open_producers([TopicPartition(OFFSETS, number) for number in numbers])
        producers = {number for number, _ in holders}
        for name, transaction in (await self._others()).items():
            if transaction.producer in producers and transaction.state != ONGOING:
                await self._end_in_the_name_of(name, (), False)

    async def _end_in_the_name_of(self, name: str, targets: Iterable[TopicPartition], commit: bool) -> None:
        async with self._acting:
            await self._until_no_worker_acts_as(name)
            producer = Producer(self._connection, name)
            try:
                await producer.start()
                await producer.end_empty(targets, commit=commit)
            finally:
                await producer.stop()

    async def _until_no_worker_acts_as(self, name: str) -> None:
        """Others that took over partitions of the same worker may end what hangs in theirs: that takes milliseconds."""
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            transaction = (await self._others()).get(name)
            if transaction is None or transaction.state != ONGOING:
                return
            await asyncio.sleep(LOOK_S)

    async def _open_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[tuple[int, int], list[TopicPartition]]:
        """Producer ids and epochs with the partitions in which their transactions are open."""
        client = (await self._reader(UNCOMMITTED))._client
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            by_node.setdefault(client.cluster.leader_for_partition(tp), []).append(tp)
        found: dict[tuple[int, int], list[TopicPartition]] = {}
        for node, led in by_node.items():
            answer = await client.send(node, DescribeProducersRequest(led))
            for topic, described, _ in answer.topics:
                if any(for_code(code) is TopicAuthorizationFailedError for _, code, *_ in described):
                    log.warning("Whose transaction is open in %s can't be seen: the right READ on it is missing", topic)
                for partition, _, _, producers, _ in described:
                    for number, epoch, *_, open_since, _ in producers:
                        if open_since >= 0:
                            found.setdefault((number, epoch), []).append(TopicPartition(topic, partition))
        return found

    async def _newest_is_visible(self, positions: TopicPartition) -> bool:
        """Whether a read_committed reader sees the newest record of positions."""
        raw = await _started(self._connection, UNCOMMITTED)
        stable = await _started(self._connection, COMMITTED)
        try:
            return await _newest_offset(raw, positions) == await _newest_offset(stable, positions)
        finally:
            await _stop(raw)
            await _stop(stable)


async def _ends(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    # aiokafka alone would learn one unknown topic a try, with 100 ms between two tries.
    await _known(consumer._client, {tp.topic for tp in partitions})
    return await consumer.end_offsets(partitions)  # type: ignore[no-any-return]


async def _known(client: Any, topics: Iterable[str]) -> None:
    for topic in topics:
        client.add_topic(topic)
    await client._maybe_wait_metadata()


async def _started(connection: Connection, isolation: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(**connection.options, isolation_level=isolation, enable_auto_commit=False)
    try:
        await consumer.start()
    except BaseException:
        await _stop(consumer)
        raise
    return consumer


async def _stop(consumer: AIOKafkaConsumer) -> None:
    with suppress(TimeoutError, KafkaError):
        await within(STOP_S, consumer.stop())


async def _newest_offset(consumer: AIOKafkaConsumer, tp: TopicPartition) -> int:
    """Offset of the last record that this consumer sees; -1 if there is none in sight."""
    end = (await consumer.end_offsets([tp]))[tp]
    first = (await consumer.beginning_offsets([tp]))[tp]
    consumer.assign([tp])
    consumer.seek(tp, max(first, end - LOOK_BACK))
    newest = -1
    while await consumer.position(tp) < end:
        for record in (await consumer.getmany(tp, timeout_ms=200)).get(tp, ()):
            newest = record.offset
    return newest
