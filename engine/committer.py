"""Commits for the whole worker: one producer, one transaction for all its partitions, every interval."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from core.errors import FencedError, HomunculusError, NotAMemberError, RightsError, TaskError
from engine.admission import admitted
from engine.deadline import within
from engine.early import EarlyOutbox
from engine.outputs import Builders, fill
from engine.producer import Member, Producer
from engine.takeover import Takeover

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.outboxes import TakenOutputs
    from engine.task import PartitionTask

log = logging.getLogger(__name__)

AHEAD_S: Final = (0.003, 0.5)
"""A transaction is begun ahead of its commit by this much: less isn't worth it, more would keep it open for nothing."""
EARLIER: Final = 1 / 3
"""Of the interval, at most: slow commits must not come ever more often."""
PARTITIONS_S: Final = 160
"""Partitions committed in a second, at most: each costs a few batches and markers, whatever is in them."""
SMOOTHING: Final = 0.1
CLOSE_S: Final = 5.0
"""What the last commit may take when partitions are revoked; not committed by then: aborted."""


class Committer:
    """What its tasks have finished is seen together or not at all. When a write fails all of them open anew."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.id = f"{engine.settings.app_id}-{engine.settings.worker_id or uuid.uuid4().hex}"
        """The transactional id, and what the group calls the worker. Of a worker with a name it outlives the process: a
        restart ends at once what the last one left open."""
        self._member: Member = (-1, "", None)
        self._producers: dict[str | None, asyncio.Task[Producer]] = {}
        """By transactional id: the one of commits, and where an agent's outputs don't wait for them, a plain one."""
        self._elsewhere: EarlyOutbox | None = None
        self._takeover: Takeover | None = None
        self._work = asyncio.Event()
        self._told = 0.0
        """The interval that the log has been told of."""
        self.lock = asyncio.Lock()
        """Held between taking what is finished and knowing what became of it."""

    def joined(self) -> bool:
        """The group has assigned partitions. Who we are to it is noted now: a member that it has lost in the meantime
        must be refused. Returns whether we were in it all the time: then nobody else can have had what we still have.
        """
        generation, member_id, _ = self._member
        coordinator = self._engine.consumer._coordinator
        self._member = (coordinator.generation, coordinator.member_id, self._engine.settings.worker_id)
        self.wake()
        return (coordinator.generation, coordinator.member_id) == (generation + 1, member_id)

    async def producer(self) -> Producer:
        """The worker's producer, started. Raises FencedError, TaskError."""
        return await self._shared(self.id)

    async def early_producer(self) -> Producer:
        """Of what doesn't wait for a commit: without transactions nothing does. Raises FencedError, TaskError."""
        return await self._shared(None if self._engine.exactly_once else self.id)

    async def early_elsewhere(self) -> EarlyOutbox:
        """For outputs of all partitions that leave at once for others'. Raises FencedError, TaskError."""
        producer = await self.early_producer()
        if self._elsewhere is None or self._elsewhere.producer is not producer:
            self._elsewhere = EarlyOutbox(producer, self.failed, self._engine.meters.sent)
        return self._elsewhere

    async def _shared(self, transactional_id: str | None) -> Producer:
        if transactional_id not in self._producers:
            self._producers[transactional_id] = asyncio.create_task(self._started(transactional_id))
        starting = self._producers[transactional_id]
        try:
            return await asyncio.shield(starting)
        except HomunculusError:
            if self._producers.get(transactional_id) is starting:
                del self._producers[transactional_id]
            raise

    async def _started(self, transactional_id: str | None) -> Producer:
        connection = self._engine.connection
        producer = Producer(connection, transactional_id)
        try:
            if producer.transactional:
                await self.takeover.note_verdicts()
            await producer.start()
        except TaskError:
            await producer.stop()
            with suppress(KafkaError, OSError):
                # aiokafka's own error doesn't tell a broker that is away from one that doesn't let us in any more.
                await admitted(connection.bootstrap, connection.security)
            raise
        except BaseException:
            await producer.stop()
            raise
        return producer

    @property
    def takeover(self) -> Takeover:
        """Decides what former owners left undecided."""
        if self._takeover is None:
            self._takeover = Takeover(self._engine.connection, self._engine.consumer, self.id, self._end_empty)
        return self._takeover

    async def _end_empty(self, targets: Iterable[TopicPartition], commit: bool) -> None:
        producer = await self.producer()
        async with self.lock:
            await producer.end_empty(targets, commit=commit)

    def wake(self) -> None:
        """A task has something to commit."""
        self._work.set()

    async def run(self) -> None:
        """Commits for ever. What readers wait counts until a commit has ended, so it begins as much earlier as the last
        ones took."""
        last, took = time.monotonic(), 0.0
        while True:
            await self._work.wait()
            interval = self._interval()
            due = last + interval - min(took, EARLIER * interval)
            await _until(due - AHEAD_S[1])
            try:
                if due - time.monotonic() > AHEAD_S[0]:
                    await self._begin()
                await _until(due)
                last = time.monotonic()
                await self.commit()
                took += SMOOTHING * (time.monotonic() - last - took)
            except (TaskError, FencedError) as error:
                await self.failed(error)

    @property
    def apart_s(self) -> float:
        """How far apart the number of partitions alone keeps two commits."""
        return len(self._engine.tasks) / PARTITIONS_S

    def _interval(self) -> float:
        """Seconds between two commits: as set, or longer where the worker has many partitions."""
        wanted = self._engine.settings.commit_interval
        interval = max(wanted, self.apart_s)
        if interval != self._told:
            if interval > wanted:
                log.info(
                    "With %d partitions this worker commits every %.2f s, not every %.2f as COMMIT_INTERVAL has it: "
                    "more workers would make it quicker",
                    len(self._engine.tasks),
                    interval,
                    wanted,
                )
            self._told = interval
        return interval

    async def _begin(self) -> None:
        async with self.lock:
            producer, tasks = self._working(), self._at_work()
            if producer is not None:
                await self._locked(producer, tasks)

    async def _locked(self, producer: Producer, tasks: list[PartitionTask]) -> bool:
        """Whether the group lets us write for these partitions. While it deals them anew it may not: then later."""
        try:
            locks = {tp: position for task in tasks for tp, position in task.positions().items()}
            await producer.begin(self._member, locks, {tp for task in tasks for tp in task.targets()})
        except NotAMemberError:
            if not self._engine.rebalancing:
                raise
            self._work.set()
            return False
        return True

    def _at_work(self) -> list[PartitionTask]:
        return [task for task in self._engine.tasks.values() if task.open and not task.idle]

    async def commit(self) -> None:
        """Outputs, changed values and positions of one instant, all seen or none. Work goes on meanwhile.

        Raises FencedError, TaskError: the tasks whose work was taken must open anew.
        """
        async with self.lock:
            self._work.clear()
            producer, tasks = self._working(), self._at_work()
            if producer is None or not tasks or not await self._locked(producer, tasks):
                return
            tasks = [task for task in tasks if task.open]
            taken = [task.take(producer) for task in tasks]
            for part in taken:
                for outbox, staged in part.outputs.early:
                    await outbox.until_sent(staged)
            outputs = joined((part.outputs for part in taken), producer.new_builder)
            records = outputs | {target: batches for part in taken for target, batches in part.records.items()}
            async with producer.transaction():
                if self._engine.exactly_once:
                    for task, part in zip(tasks, taken, strict=True):
                        records |= task.marker(producer, part)
                    ends = await producer.send(records)
                else:
                    # In this order: a marker never speaks of records that aren't there.
                    ends = await producer.send(records)
                    markers: Builders = {}
                    for task, part in zip(tasks, taken, strict=True):
                        task.note(ends)
                        markers |= task.marker(producer, part)
                    await producer.send(markers)
            self._engine.meters.sent(outputs)
            for task, part in zip(tasks, taken, strict=True):
                task.committed_to(part, ends)

    def _working(self) -> Producer | None:
        started = self._producers.get(self.id)
        return started.result() if started is not None and started.done() and not started.exception() else None

    async def failed(self, error: TaskError | FencedError) -> None:
        """Every open task goes back to what is committed, with a new producer."""
        engine = self._engine
        told = TaskError("the group deals its partitions anew") if isinstance(error, NotAMemberError) else error
        for task in engine.tasks.values():
            task.fail(told)
        await self._discard()
        if isinstance(error, FencedError) and not engine.rebalancing:
            if not await engine.still_owner():
                engine.fatal(error)
                return
            log.warning("The broker gave up our transaction; reopening, the group says that the partitions are ours")

    async def _discard(self) -> None:
        self._work.clear()
        if self._elsewhere is not None:
            self._elsewhere.close("its producer is given up")
            self._elsewhere = None
        producers, self._producers = self._producers, {}
        for started in producers.values():
            await asyncio.wait([started])
            if not started.exception():
                await started.result().stop()

    async def revoked(self) -> None:
        """The last commit before partitions may go. Never raises."""
        try:
            await within(CLOSE_S, self.commit())
        except (TaskError, FencedError, RightsError, TimeoutError) as error:
            log.warning("The last commit was dropped (%s); the partitions' next owners do that work again", error)
            for task in self._engine.tasks.values():
                task.fail(TaskError("revoked"))
            await self._discard()

    async def stop(self) -> None:
        """Disconnects."""
        await self._discard()
        if self._takeover is not None:
            await self._takeover.stop()


def joined(taken: Iterable[TakenOutputs], new_builder: Callable[[], Any]) -> Builders:
    """Outputs of all partitions, one row of batches a target."""
    parts = list(taken)
    outputs: Builders = {}
    for part in parts:
        for target, batches in part.here.items():
            outputs.setdefault(target, []).extend(batches)
    for part in parts:
        for topic, keys, values, headers, partition in part.elsewhere:
            fill(outputs.setdefault(TopicPartition(topic, partition), []), new_builder, keys, values, headers)
    return outputs


async def _until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
