"""What a worker is made of beside Faust: its tasks, its connection, its tables, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from core.errors import FatalError, HomunculusError, RightsError, TopicError
from core.settings import Settings
from core.topics import TopicSpec
from engine.admission import REFUSED, in_words
from engine.changelog import Changelog
from engine.committer import Committer
from engine.connection import Connection
from engine.folder import WorkerFolder
from engine.gate import Gate
from engine.meters import Meters
from engine.profile import Profile
from engine.pulse import Pulse
from engine.standby import Standbys
from engine.store import RocksMemory
from engine.table import Table
from engine.task import PartitionTask
from engine.watches import Watches
from models.knowledge.knowledge import Knowledge
from models.knowledge.qdrant import Qdrant

if TYPE_CHECKING:
    from engine.spans import Tracer
    from models.live import LiveModels

log = logging.getLogger(__name__)

LEAVE_S: Final = 0.5
FATAL_STATUS: Final = 3


class Engine:
    """The worker's own state. Faust has the group, the agents and the web; this has everything that must be exact."""

    def __init__(self, settings: Settings, tables: Mapping[str, Table[Any, Any]], models: LiveModels) -> None:
        self.settings = settings
        self.tables = dict(tables)
        self.models = models
        self.knowledge = Knowledge(models, settings.embedder, Qdrant.of(settings), settings.reranker_model)
        self.name = settings.worker_id or f"{socket.gethostname()}-{settings.web_port}"
        """Who this worker is: WORKER_ID, or host and web port."""
        self.tasks: dict[int, PartitionTask] = {}
        self.sources: set[str] = set()
        """Input topics, as the broker names them."""
        self.timed_sources: set[str] = set()
        """Those whose agents asked for event time."""
        self.rests: dict[str, float] = {}
        """Seconds between two looks, by the topics whose agents asked for it."""
        self.outputs: frozenset[str] = frozenset()
        """Topics that agents may write to, by their name in core/topics.py or in an agent's outputs."""
        self.ready = asyncio.Event()
        """Set once models stand where the deployments say: tasks open after it."""
        self.wake = asyncio.Event()
        self.meters = Meters()
        self.pulse = Pulse(self)
        self.traces: Tracer | None = None
        """Makes spans, where HOMUNCULUS_OTLP_ENDPOINT asks for them."""
        self.profile = Profile(settings.profile)
        self.memory = RocksMemory()
        self.gate = Gate()
        """What isn't put to a model."""
        self.committer = Committer(self)
        self.standbys = Standbys(self)
        self.watches = Watches()
        self.has_early = False
        """Whether an agent's outputs leave before their commit."""
        self.epoch = 0
        """Counts assignments: what was fetched under an older one is given back."""
        self.rebalancing = False
        """Whether the group is dealing partitions: it may refuse what it let us write before."""
        self.dying: BaseException | None = None
        self._begins: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._folder = WorkerFolder(self.application_folder)
        self._connection: Connection | None = None
        self._consumer: AIOKafkaConsumer | None = None

    # -- what the start gives it --------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The broker; known once the worker has started."""
        assert self._connection is not None
        return self._connection

    @connection.setter
    def connection(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def consumer(self) -> AIOKafkaConsumer:
        """The group's consumer; known once the worker has started."""
        assert self._consumer is not None
        return self._consumer

    @consumer.setter
    def consumer(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    @property
    def started_consuming(self) -> bool:
        """Whether the group's consumer is there."""
        return self._consumer is not None

    @property
    def exactly_once(self) -> bool:
        """Whether commits are transactions."""
        return self.connection.transactional

    @property
    def application_folder(self) -> Path:
        """Where the workers' folders are: another application's must not be taken for ours."""
        return self.settings.data_dir / self.settings.app_id

    @property
    def folder(self) -> Path:
        """Where this worker's partitions have their stores."""
        return self._folder.path

    def claim_folder(self) -> None:
        """Takes a folder for this process alone. Raises DataFolderError."""
        self._folder.claim()

    @property
    def output_names(self) -> list[str]:
        """Topics that agents may write to, as the broker names them."""
        return [self.settings.topic_prefix + name for name in sorted(self.outputs)]

    def topic_name(self, topic: TopicSpec[Any]) -> str:
        """How the broker names it."""
        return self.settings.topic_prefix + topic.name

    def changelog(self, partition: int) -> Changelog:
        """The changelogs of a partition's tables."""
        return Changelog(self.connection, partition, list(self.tables))

    def now_ms(self) -> int:
        """The clock that timers by the clock go by, ms since epoch."""
        return int(time.time() * 1e3)

    # -- assignment ---------------------------------------------------------------------------------------------------

    async def revoked(self) -> None:
        """The group is about to deal the partitions anew. What is finished is committed, and with transactions nothing
        is let go yet: most partitions stay where they are, and whoever gets another one of ours waits for our
        transaction. Without them nobody would."""
        self.rebalancing = True
        await self.committer.revoked()
        if not self.exactly_once:
            await self._close_tasks()

    async def assigned(self, topics_by_partition: Mapping[int, Iterable[str]], copies: set[int]) -> None:
        """What stays goes on where it is, what has gone is closed; the rest opens in the background, so that the
        group's heartbeats go on however long a replay takes. copies: other workers' partitions that we follow."""
        if self.dying is not None:
            return
        topics = {partition: tuple(sorted(names)) for partition, names in topics_by_partition.items()}
        if (grown := self.grown({name: n + 1 for n in sorted(topics) for name in topics[n]})) is not None:
            self.fatal(grown)
            return
        async with self.committer.lock:  # a commit under way is the former member's
            self.epoch += 1
            continuous = self.committer.joined()
            before = self.tasks
            self.tasks = {n: task for n, task in before.items() if continuous and topics.get(n) == task.topics}
            for task in self.tasks.values():
                self._go_on(task)
            self.rebalancing = False
        await self.standbys.keep(copies)
        await asyncio.gather(*(task.close() for n, task in before.items() if n not in self.tasks))
        self.standbys.follow(copies)
        for partition in topics.keys() - self.tasks.keys():
            self.tasks[partition] = PartitionTask(self, partition, topics[partition])

    def grown(self, dealt: Mapping[str, int] = MappingProxyType({})) -> TopicError | None:
        """What to say when somebody has added partitions to an input topic: who sends there parts sessions from their
        state, and there are no changelogs for them. dealt: how many partitions of a topic the group knows of."""
        expected = self.settings.partitions
        for topic in sorted(self.sources):
            known = len(self.consumer._client.cluster.partitions_for_topic(topic) or ())
            if max(known, dealt.get(topic, 0)) > expected:
                return TopicError(
                    f"topic {topic} has been given more than the {expected} partitions that this application was made "
                    "with: producers that know of them send sessions to partitions that don't have their state, so all "
                    "workers stop. Nothing is lost, and Kafka can't take partitions away again: stop the producers, "
                    "then move the application to topics of their own (docs/guarantees.md, Added partitions)"
                )
        return None

    def _go_on(self, task: PartitionTask) -> None:
        """The consumer has forgotten where it was, and Faust drops what its queues hold of the last generation. A task
        that still opens seeks then."""
        if task.open:
            task.read_again()
            self.consumer.resume(*(TopicPartition(topic, task.partition) for topic in task.topics))

    async def close(self) -> None:
        """Every task commits what is finished and lets go."""
        await self.committer.revoked()
        await self.publish_positions()  # while the tasks are there to say where they are
        await self._close_tasks()
        await self.standbys.keep(set())
        await self.committer.stop()

    async def _close_tasks(self) -> None:
        self.epoch += 1
        tasks, self.tasks = list(self.tasks.values()), {}
        await asyncio.gather(*(task.close() for task in tasks))

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Puts the consumer where tasks go on. A position that the topic no longer has becomes its beginning."""
        begins, ends = await asyncio.gather(  # each waits until the fetch under way is answered
            self.consumer.beginning_offsets(list(positions)), self.consumer.end_offsets(list(positions))
        )
        for tp, wanted in positions.items():
            position = wanted
            if position > ends[tp] and not self.settings.embedded:
                log.warning(
                    "%s/%d was at %d but ends at %d: it was made anew; reading it from its start",
                    *tp,
                    position,
                    ends[tp],
                )
                position = 0
            self._begins[tp] = max(position, begins[tp])
            self._ends[tp] = ends[tp]
            try:
                self.consumer.seek(tp, self._begins[tp])
                self.consumer.resume(tp)
            except IllegalStateError:
                return  # no longer assigned: the next assignment makes a new task

    def begins(self, tp: TopicPartition) -> int:
        """Where seek() put the consumer."""
        return self._begins[tp]

    def reading_at(self, tp: TopicPartition) -> int:
        """What the consumer asks the broker for next; -1 while it doesn't know."""
        subscription = self.consumer._subscription.subscription
        state = subscription and subscription.assignment and subscription.assignment.state_value(tp)
        return int(state.position) if state and state.has_valid_position else -1

    def end(self, tp: TopicPartition) -> int | None:
        """Behind the last record that may be read, as far as the consumer knows; None while it knows nothing."""
        subscription = self.consumer._subscription.subscription
        state = subscription and subscription.assignment and subscription.assignment.state_value(tp)
        if not state or not state.has_valid_position:
            return None
        end = state.highwater if state.lso in (None, -1) else state.lso
        return max(end or 0, self._ends.get(tp, 0))

    def behind(self, tp: TopicPartition) -> bool:
        """Whether there are records that the consumer has not handed out, as far as it knows."""
        end = self.end(tp)
        return end is None or self.reading_at(tp) < end

    def seek_now(self, tp: TopicPartition, offset: int) -> None:
        """Reads a partition again from an offset that it has."""
        try:
            self.consumer.seek(tp, offset)
        except IllegalStateError:
            return  # no longer assigned

    async def still_owner(self) -> bool:
        """Whether the group takes us for the owner: it checks the generation of an offset commit."""
        while self.dying is None:
            try:
                await self.publish_positions(strict=True)
                return True
            except (CommitFailedError, IllegalStateError):
                return False
            except KafkaError as error:
                log.warning("Asking the group whether we are still in it: %r", error)
                await asyncio.sleep(0.2)
        return False

    async def publish_positions(self, strict: bool = False) -> None:
        """Group offsets, for lag tools; never read back. strict raises what goes wrong."""
        held = self.consumer.assignment()
        offsets = {tp: position for tp, position in self._begins.items() if tp in held}
        for task in self.tasks.values():
            for topic, position in task.committed.items():
                if (tp := TopicPartition(topic, task.partition)) in held:
                    offsets[tp] = position
        if not offsets:
            if strict:
                raise CommitFailedError
            return
        try:
            await self.consumer.commit(offsets)
        except KafkaError as error:
            if strict:
                raise
            log.debug("Positions for lag tools were not published: %r", error)

    # -- the end ------------------------------------------------------------------------------------------------------

    def fatal(self, error: BaseException) -> None:
        """From here on nothing is opened, read or written: leave the group and exit. A graceful shutdown would take
        seconds, rejoin meanwhile, and fence the healthy owner."""
        if self.dying is None:
            if isinstance(error, REFUSED):
                error = RightsError(in_words(error))
            self.dying = error
            if isinstance(error, (FatalError, HomunculusError)):
                log.critical("%s", error)
            else:
                log.critical("The worker stops: %r", error, exc_info=error)
            asyncio.get_running_loop().create_task(self._die())

    async def _die(self) -> None:
        try:
            if self._consumer is not None:
                await asyncio.wait_for(self._consumer._coordinator._maybe_leave_group(), LEAVE_S)
        finally:
            self.profile.write()
            logging.shutdown()
            os._exit(FATAL_STATUS)
