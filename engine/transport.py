"""The consumer under Faust: one Faust message a poll and topic, whose value is a slice from each partition."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError
from faust.transport import consumer as faust_consumer
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode import Service

from core.errors import UsageError
from engine.assignor import TaskAssignor
from engine.batch import Slice
from engine.bulk import IN_CHUNKS
from engine.engine import Engine
from engine.looks import Looks
from engine.record import Record

if TYPE_CHECKING:
    from engine.app import App

log = logging.getLogger(__name__)

MAX_CHUNKS: Final = 8
"""Chunks of one poll: 8 partitions with little each, or 8,000 records."""
MAX_BATCH: Final = 2000
"""Records, about, that an agent gets at once."""
BIG: Final = 200
"""A batch of more records is followed by YIELDS turns of the event loop: a commit needs about 15 of them."""
YIELDS: Final = 10
GATHER_S: Final = 0.008
"""Small polls follow each other no faster: a few ms of arrivals make one batch."""
BUSY: Final = (10, 65_536)
"""Most ms that the broker waits, and the bytes that it waits for, while records flow: fewer, fuller answers."""
MANY: Final = (20, 0.2)
"""Partitions that are many. A broker that waits for bytes looks at all that were asked for whenever one of them grows:
then fetches are kept apart here instead, by a share of what their number keeps commits apart."""
QUIET: Final = (100, 1)
"""And while none do: 10 requests a second instead of 160, and the first record comes at once."""
QUIET_S: Final = 0.5
HEARTBEAT_MS: Final = 500
"""What tells a worker that the group deals anew: everybody waits for the last one to hear of it. The embedded broker
is asked less often: it throws members out who ask while it deals."""
METADATA_MS: Final = 10_000
"""How old what we know of the topics may be: added partitions are seen so soon."""
MODELS_S: Final = 20.0
"""Seconds that joining the group waits for the models that are deployed."""
CLOSE_S: Final = 8.0
"""Seconds that the end of all work may take: a broker that is out of reach must not keep us for longer than
supervisors wait."""
STOP_S: Final = 5.0
"""Seconds that leaving the group may take."""
POSITIONS_S: Final = 1.0
"""Seconds between publications of group offsets, for lag tools."""


class _Listener(aiokafka.abc.ConsumerRebalanceListener):
    def __init__(self, consumer: TaskConsumer) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._consumer.app.on_rebalance_start()
        await self._consumer.on_partitions_revoked(faust_consumer.ensure_TPset(revoked))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        app = self._consumer.app
        generation = app.consumer_generation_id = self._consumer.kafka._coordinator.generation
        await self._consumer.on_partitions_assigned(faust_consumer.ensure_TPset(assigned), generation)


class TaskConsumer(faust_consumer.Consumer):
    """Faust keeps group, agents and streams; the engine's tasks keep positions, acks and commits."""

    app: App
    consumer_stopped_errors = (ConsumerStoppedError,)
    _looks: Looks
    _first = True
    """Whether the group has not assigned anything yet."""

    @property
    def engine(self) -> Engine:
        """The worker's engine."""
        return self.app.engine

    @property
    def kafka(self) -> aiokafka.AIOKafkaConsumer:
        """The consumer of the group."""
        return self.engine.consumer

    # -- life ---------------------------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        engine, conf = self.engine, self.app.conf
        settings = engine.settings
        session_ms = int(settings.session_timeout * 1e3)
        engine.consumer = aiokafka.AIOKafkaConsumer(
            **engine.connection.options | {"request_timeout_ms": int(conf.broker_request_timeout * 1e3)},
            client_id=engine.committer.id,
            group_id=settings.app_id,
            group_instance_id=settings.worker_id,  # None, never '': that counts as a member and replaces its twin
            partition_assignment_strategy=[self.app.assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            key_deserializer=IN_CHUNKS,
            max_partition_fetch_bytes=max(1 << 20, settings.max_record + 65_536),
            metadata_max_age_ms=METADATA_MS,
            fetch_max_wait_ms=QUIET[0],
            fetch_min_bytes=QUIET[1],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            heartbeat_interval_ms=min(session_ms // 4, HEARTBEAT_MS) if engine.exactly_once else session_ms // 4,
        )
        await self.kafka.start()
        self._look_where_due()

    def _look_where_due(self) -> None:
        """aiokafka asks for all partitions each time, and as often as it can."""
        looks = self._looks = Looks(self.engine.rests)
        fetcher = self.kafka._fetcher
        every = fetcher._get_actions_per_node

        def due(assignment: Any) -> tuple[Any, ...]:
            requests, resets, timeout, *others = every(assignment)
            asked = []
            for broker, request in requests:
                if early := looks.early(broker):
                    timeout = min(timeout, early)
                elif topics := looks.due(broker, request.topics):
                    request._topics = topics
                    asked.append((broker, request))
            return (asked, resets, timeout, *others)

        fetcher._get_actions_per_node = due

    async def on_stop(self) -> None:
        if not self.engine.started_consuming:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.engine.close()
        except TimeoutError:
            log.warning("Not all work has ended within %.0f s; what isn't committed is done again", CLOSE_S)
        await super().on_stop()
        try:
            async with asyncio.timeout(STOP_S):  # a broker that is away must not keep us
                await self.kafka.stop()  # leaves the group
        except TimeoutError:
            log.warning("The broker did not answer within %.0f s; the group will miss this worker by itself", STOP_S)

    async def subscribe(self, topics: Iterable[str]) -> None:
        if unknown := set(topics) - self.engine.sources:
            self.engine.fatal(
                UsageError(f"{', '.join(sorted(unknown))}: only topics of @agent are read here (see docs/faust.md)")
            )
            return
        with suppress(TimeoutError):  # whoever has our future partitions keeps them until we can work on them
            async with asyncio.timeout(MODELS_S):
                await self.engine.ready.wait()
        self.kafka.subscribe(topics=sorted(self.engine.sources), listener=_Listener(self))

    # -- rebalance ----------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Faust would stop the flow and empty the agents' queues: where transactions protect what we write, work goes
        on until the group has decided."""
        engine = self.engine
        if not engine.exactly_once:
            await super().on_partitions_revoked(revoked)
        await engine.revoked()
        if engine.exactly_once and (subscription := self.kafka._subscription.subscription) is not None:
            subscription._reassignment_in_progress = False  # else aiokafka would hold back what it has fetched

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        topics: dict[int, list[str]] = {}
        for tp in assigned:
            if tp.topic in self.engine.sources:
                topics.setdefault(tp.partition, []).append(tp.topic)
        # Nothing is read before its task is open: the task seeks, then resumes.
        self.kafka.pause(*(TopicPartition(t, p) for p, ts in topics.items() for t in ts))
        await self.engine.assigned(topics, {tp.partition for tp in self.app.assignor.assigned_standbys()})
        await super().on_partitions_assigned(assigned, generation_id)
        first, self._first = self._first, False
        if first and not cast(TaskAssignor, self.app.assignor).fits:
            log.info("What this worker held under its name was dealt to what it was before: asking the group anew")
            self.kafka._coordinator.request_rejoin()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _drain_messages(self, fetcher: Any) -> None:
        """Polls for ever. Nothing leaves aiokafka unless its task is open and has room: that is the backpressure."""
        engine = self.engine
        big, last_read = False, 0.0
        try:
            while not (engine.dying or self._stopped.is_set() or fetcher._stopped.is_set() or self.should_stop):
                await asyncio.sleep(0)
                if not big and (early := last_read + GATHER_S - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                if not self.flow_active:
                    await self.wait(cast(Any, self.can_resume_flow))
                    continue
                engine.wake.clear()
                readable, all_readable = self._readable()
                if not readable:
                    await self._until_readable()
                    continue
                epoch = engine.epoch
                chunks = await self._fetched(readable, 0.2 if all_readable else 0.05)
                if not chunks:
                    big = False
                    if time.monotonic() - last_read > QUIET_S:
                        self._pace(QUIET)
                    continue
                self._hurry()
                last_read = time.monotonic()
                for batch in self._accept(chunks, current=epoch == engine.epoch):
                    big = sum(s.size for s in batch) > BIG
                    await self.callback(self._message(batch))
                    for _ in range(YIELDS if big else 0):
                        await asyncio.sleep(0)
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise
        except Exception as error:  # nobody would read any more: better to end where a supervisor sees it
            engine.fatal(error)

    def _readable(self) -> tuple[list[TopicPartition], bool]:
        readable, total = [], 0
        for task in self.engine.tasks.values():
            for topic in task.topics:
                total += 1
                if task.room(topic):
                    readable.append(TopicPartition(topic, task.partition))
        return readable, len(readable) == total

    async def _until_readable(self) -> None:
        # Shows the group that we are alive, however long a replay or the wait for a model takes.
        with self.kafka._fetcher._subscriptions.fetch_context():
            try:
                await asyncio.wait_for(self.engine.wake.wait(), 0.5)
            except TimeoutError:
                return

    async def _fetched(
        self, partitions: list[TopicPartition], timeout: float
    ) -> dict[TopicPartition, list[list[Record]]]:
        fetcher = self.kafka._fetcher
        if self.kafka._closed or fetcher._closed:
            raise ConsumerStoppedError
        with fetcher._subscriptions.fetch_context():
            # Never with an empty list: there that means every partition.
            chunks = await fetcher.fetched_records(set(partitions), timeout=timeout, max_records=MAX_CHUNKS)
        return cast(dict[TopicPartition, list[list[Record]]], chunks)

    def _hurry(self) -> None:
        many, share = MANY
        if self.engine.exactly_once and len(self.engine.tasks) > many:
            self._looks.apart_s = min(share * self.engine.committer.apart_s, QUIET[0] / 1e3)
            self._pace(QUIET)
        else:
            self._looks.apart_s = 0.0
            self._pace(BUSY)

    def _pace(self, pace: tuple[int, int]) -> None:
        fetcher = self.kafka._fetcher
        fetcher._fetch_max_wait_ms, fetcher._fetch_min_bytes = pace

    def _accept(
        self, fetched: Mapping[TopicPartition, list[list[Record]]], current: bool
    ) -> Iterator[list[Slice[Any]]]:
        """Hands chunks to their tasks as slices, and these out in batches of one topic."""
        slices: dict[str, list[Slice[Any]]] = {}
        for tp, chunks in fetched.items():
            task = self.engine.tasks.get(tp.partition)
            if task is None or not task.open:
                continue  # it seeks when it opens
            expected = task.next_offset(tp.topic)
            if not current or chunks[0][0].offset < expected:
                # A fetch begun under the old assignment can return records of the new one. Dropping them would lose
                # them: they are given back.
                self.kafka.seek(tp, expected)
                continue
            accepted = [s for chunk in chunks for s in task.accept(tp.topic, chunk)]
            slices.setdefault(tp.topic, []).extend(accepted)
            self._looks.came(tp.topic, sum(s.weight for s in accepted))
        for group in slices.values():
            batch: list[Slice[Any]] = []
            size = 0
            for s in group:
                batch.append(s)
                size += s.size
                if size >= MAX_BATCH:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch

    def _message(self, slices: list[Slice[Any]]) -> ConsumerMessage:
        first = slices[0]
        tp = TP(first.topic, first.partition)
        at = first.records[-1].timestamp / 1e3
        generation = self.app.consumer_generation_id
        return ConsumerMessage(
            first.topic,
            first.partition,
            first.last,
            at,
            0,
            None,
            None,
            cast(Any, slices),
            None,
            0,
            0,
            tp,
            generation_id=generation,
        )

    # -- what the engine does instead of Faust ------------------------------------------------------------------------

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        return False

    async def _commit(self, offsets: Any) -> bool:
        return False

    def ack(self, message: Any) -> bool:
        message.acked = True
        return True

    async def wait_empty(self) -> None:
        """Nothing to wait for: unfinished work is dropped and read again."""

    async def perform_seek(self) -> None:
        """Each task seeks its own partitions when it opens."""

    async def verify_all_partitions_active(self) -> None:
        """Faust's watch over its own positions; the engine has its watchdog."""

    @Service.task
    async def _publish_positions(self) -> None:
        while not self.should_stop:
            await self.sleep(POSITIONS_S)
            if not self.app.rebalancing and not self.should_stop:
                await self.engine.publish_positions()

    # -- the rest of Faust's interface --------------------------------------------------------------------------------

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        raise AssertionError("messages are made a poll at a time")

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        raise AssertionError("records are read by _drain_messages")

    async def seek_to_committed(self) -> Mapping[TP, int]:
        return {}

    async def position(self, tp: TP) -> int | None:
        return cast(int, await self.kafka.position(TopicPartition(*tp)))

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        raise AssertionError("tasks seek")

    async def _seek(self, partition: TP, offset: int) -> None:
        self.kafka.seek(TopicPartition(*partition), offset)

    def assignment(self) -> set[TP]:
        if self.engine.started_consuming:
            return faust_consumer.ensure_TPset(self.kafka.assignment())
        return set()

    def highwater(self, tp: TP) -> int:
        return cast(int, self.kafka.highwater(TopicPartition(*tp)))

    def topic_partitions(self, topic: str) -> int | None:
        return cast("int | None", self.kafka._coordinator._metadata_snapshot.get(topic))

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        return cast(Mapping[TP, int], await self.kafka.beginning_offsets([TopicPartition(*tp) for tp in partitions]))

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        return cast(Mapping[TP, int], await self.kafka.end_offsets([TopicPartition(*tp) for tp in partitions]))

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        raise AssertionError("outputs go to their input's partition")

    def verify_recovery_event_path(self, now: float, tp: TP) -> None:
        """Faust's tables are not used."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """The engine has its watchdog."""

    async def create_topic(self, topic: str, partitions: int, replication: int, **options: Any) -> None:
        """engine/admin.py has made every topic."""

    def close(self) -> None:
        """on_stop closes."""


class Transport(driver.Transport):
    """Faust's transport with our consumer."""

    Consumer = TaskConsumer
