"""One object owns all of a partition: store, positions, staged outputs. It is the unit of everything but the commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from core.errors import FencedError, NewerStateError, TaskError, UsageError
from engine.admission import REFUSED, in_words
from engine.batch import Slice, Staged
from engine.checkpoints import Checkpoints
from engine.clock import PartitionClock
from engine.meters import Finished
from engine.offsets import OffsetTracker
from engine.outboxes import Outboxes
from engine.outputs import Builders
from engine.producer import Producer
from engine.quota import MAX_BYTES, MAX_UNFINISHED, Quota, weigh
from engine.record import Record
from engine.schema import refuse_newer
from engine.store import PartitionStore
from engine.table import RESERVED, Items, Shard
from engine.taken import Taken

if TYPE_CHECKING:
    from engine.engine import Engine

log = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""What the end of its work may take when a partition is revoked."""
REOPEN_S: Final = (0.2, 5.0)
"""First and longest pause before a task is opened again."""
_VALUE: Final[Callable[[Record], bytes | None]] = attrgetter("value")
REFUSED_S: Final = 60.0
"""Pause before a partition with a newer release's state is looked at again: another worker may have it by then."""


class PartitionTask:
    """Opens in the background, and opens itself anew, from what is committed, when a write fails."""

    def __init__(self, engine: Engine, partition: int, topics: Iterable[str]) -> None:
        self.engine = engine
        self.partition = partition
        self.topics = tuple(topics)
        """Source topics, as the broker names them."""
        self.open = False
        self.epoch = 0
        """Slices of an older epoch are stale."""
        self.watermark = -1
        """Of the finished prefix, ms since epoch: what clock makes of its newest event times."""
        self.clock = PartitionClock(self, {})
        self.committed: dict[str, int] = {}
        self.written: dict[TopicPartition, int] = {}
        """Where outputs of its transactions end, of those topics that it has written to since it opened: readers of
        what is committed may see them a moment later."""
        self.shards: dict[str, Shard] = {}
        """Its part of each table: a dict of its own whenever it opens."""
        self.idle = True
        """Whether nothing waits for a commit."""
        self.waits_since: float | None = None
        """When the oldest finished work that isn't committed came to wait for it, monotonic; None: nothing waits."""
        self.reason = "opening"
        """Why it isn't open."""
        self._trackers: dict[str, OffsetTracker[Slice[Any]]] = {}
        self._careful: dict[str, int] = {}
        self._changelog = engine.changelog(partition)
        self._foreign: dict[str, int] = {}
        """Positions in topics that only another release reads: it goes on there when it comes back."""
        self._versioned: dict[str, int] = {}
        """Tables whose values of today aren't the first version."""
        self._finished: list[Finished] = []
        self._closing = False
        self._erased = ""
        """The newest erasure of a session that no commit has taken yet."""
        self._quota = Quota()
        self.paused: set[str] = set()
        """Topics of which nothing more is read for the moment."""
        self._held = False
        """Whether something finished waits for the commit after the next."""
        self._written_to: set[TopicPartition] = set()
        self._outboxes: Outboxes | None = None
        self._store: PartitionStore | None = None
        self._checkpoints = Checkpoints(self)
        self._opening: asyncio.Task[PartitionStore] | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run(), name=f"partition {partition}")

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = REOPEN_S[0]
        while not self._closing:
            try:
                await self._assigned()
                pause = REOPEN_S[0]
                await self._failure
            except REFUSED as error:
                self._drop(in_words(error))
                self.engine.fatal(error)
                return
            except NewerStateError as error:
                self._drop(str(error))
                log.critical("Partition %d stays closed, the others go on. %s", self.partition, error)
                pause = REFUSED_S
            except (TaskError, FencedError, KafkaError, OSError) as error:
                self._drop(str(error))
                log.warning(
                    "Partition %d: %s; reopening from the last commit in %.1f s",
                    self.partition,
                    error or repr(error),
                    pause,
                )
            except Exception as error:  # anything else is a fault of ours, or a full disk: stop in the open
                self._drop(str(error))
                self.engine.fatal(error)
                return
            await self._release()
            await asyncio.sleep(pause)
            pause = min(2 * pause, REOPEN_S[1])

    async def _assigned(self) -> None:
        engine, began = self.engine, time.monotonic()
        connection, tables, folder = engine.connection, engine.tables, engine.folder / str(self.partition)
        self._failure = asyncio.get_running_loop().create_future()
        self._changelog = engine.changelog(self.partition)
        self._outboxes = await Outboxes.open(self.engine, self.partition)
        sources = [TopicPartition(topic, self.partition) for topic in self.topics]
        if connection.transactional:
            self.reason = "waiting until its former owner's work is decided"
            await engine.committer.takeover.decided(
                sources,
                self._changelog.positions,
                [tp for tp in self._changelog.targets(tables) if tp != self._changelog.positions],
                [TopicPartition(name, self.partition) for name in engine.output_names],
            )
        decided = time.monotonic()
        self.reason = "restoring its tables"
        self._opening = asyncio.create_task(asyncio.to_thread(PartitionStore, folder, list(tables), engine.memory))
        self._store = store = await asyncio.shield(self._opening)
        restored = await self._changelog.replay(store)  # read_committed, up to the end of this moment
        replayed = time.monotonic()
        written = self._changelog
        schemas = [table.schema for table in tables.values()]
        refuse_newer(self.partition, written.versions, written.format, schemas, store)  # before a value is read
        self._versioned = {schema.table: schema.version for schema in schemas if schema.version > 1}
        self.idle, self._held, self._erased = True, False, ""
        self.shards = {name: table.shard(store) for name, table in tables.items()}
        self._trackers = {t: OffsetTracker(store.meta.positions.get(t, 0)) for t in self.topics}
        self._foreign = {t: offset for t, offset in store.meta.positions.items() if t not in self.topics}
        self.committed = dict(store.meta.positions)
        self.watermark = store.meta.watermark
        self.clock = PartitionClock(self, self.shards)
        self.reason = "waiting for the models"
        await engine.ready.wait()
        await engine.seek({tp: self._trackers[tp.topic].position for tp in sources})
        for tp in sources:
            tracker = self._trackers[tp.topic]
            tracker.accepted = tracker.position = max(tracker.position, engine.begins(tp))
        self._checkpoints.opened()
        self.open = True  # last: now it may be read
        self.reason = ""
        engine.wake.set()
        log.info(
            "Partition %d is open: decided in %.0f ms, %d records replayed in %.0f ms, positions %s",
            self.partition,
            1e3 * (decided - began),
            restored,
            1e3 * (replayed - decided),
            {t: tracker.position for t, tracker in self._trackers.items()},
        )

    def fail(self, error: TaskError | FencedError) -> None:
        """What was taken from it is not committed: it opens anew."""
        if self.open:
            self.engine.meters.reopened += 1
            self._quota.failed()
            self._drop(str(error))
            self._failure.set_exception(error)
            self._failure.exception()  # nobody asks for it when the task is being closed

    async def close(self) -> None:
        """Drops what is not committed, and releases the folder."""
        self._closing = True
        self._drop("revoked")
        self._runner.cancel()
        await asyncio.wait([self._runner], timeout=CLOSE_S)
        await self._release()

    def _drop(self, reason: str) -> None:
        self.epoch += 1
        self.open = False
        self.reason = reason
        self.engine.watches.closed(self.partition)
        if self._outboxes is not None:
            self._outboxes.close(reason)
        self._finished, self.waits_since = [], None
        self._trackers = {}
        self.shards = {}

    async def _release(self) -> None:
        opening, self._opening, self._store = self._opening, None, None
        if opening is not None:
            # Whoever was cancelled while it opened must not leave it behind: it holds the folder's lock.
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def room(self, topic: str) -> bool:
        """Whether more of a topic may be read."""
        if not self.open or topic in self.paused:
            return False
        tracker = self._trackers[topic]
        return tracker.unfinished < MAX_UNFINISHED and tracker.weight < self._share and self.staged_room

    def next_offset(self, topic: str) -> int:
        """What is accepted next."""
        return self._trackers[topic].accepted

    def accept(self, topic: str, records: list[Record]) -> list[Slice[Any]]:
        """Takes records as one slice; one a record where an agent failed on them before."""
        tracker = self._trackers[topic]
        careful = self._careful.get(topic, -1)
        if careful >= records[0].offset:
            slices: list[Slice[Any]] = [Slice(self, topic, [record]) for record in records]
            for s in slices:
                s.alone = True
        else:
            size = self._quota.piece
            slices = [Slice(self, topic, records[i : i + size]) for i in range(0, len(records), size)]
            self._careful.pop(topic, None)
        for s in slices:
            s.weight = weigh(s.records, _VALUE)
            tracker.accept(s)
        return slices

    def finished_to(self, topic: str) -> int:
        """Where the finished prefix of a topic ends."""
        return self._trackers[topic].position

    def behind(self, topic: str) -> bool:
        """Whether a topic has records that aren't finished, or not even read."""
        return self._trackers[topic].unfinished > 0 or self.engine.behind(TopicPartition(topic, self.partition))

    def unfinished_of(self, topic: str) -> int:
        """Records of a topic that were handed out and aren't part of the finished prefix."""
        return self._trackers[topic].unfinished if self.open else 0

    @property
    def staged(self) -> int:
        """Outputs that wait for a commit, or for the broker."""
        return self._outboxes.count if self.open and self._outboxes is not None else 0

    @property
    def to_replay(self) -> int:
        """Records of its changelogs that have still to be read before it opens."""
        return self._changelog.left

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """Table -> values in the store, their bytes, values in memory; nothing while it isn't open."""
        if not self.open or self._store is None:
            return {}
        stored = self._store.sizes()
        return {name: (*stored.get(name, (0, 0)), shard.in_memory) for name, shard in self.shards.items()}

    def replace(self, s: Slice[Any], parts: list[Slice[Any]]) -> None:
        """Smaller slices in the place of one."""
        self._trackers[s.topic].replace(s, parts)

    def rewind(self, failed: Slice[Any]) -> None:
        """Gives up unfinished work and reads it again; records up to the failed slice's end come one by one."""
        self._careful[failed.topic] = max(failed.last, self._careful.get(failed.topic, -1))
        self.read_again()

    def read_again(self) -> None:
        """Gives up unfinished work; the consumer goes back to where the finished prefix ends."""
        self.epoch += 1
        dropped = [s for tracker in self._trackers.values() for s in tracker.rewind()]
        for shard in self.shards.values():
            shard.rollback(dropped, ())
        self.clock.reset()
        for topic, tracker in self._trackers.items():
            self.engine.seek_now(TopicPartition(topic, self.partition), tracker.position)
        self.engine.wake.set()

    def undo(self, s: Slice[Any]) -> None:
        """Takes back what one unfinished slice changed; the others' changes stay."""
        kept = [other for other in self.unfinished() if other is not s]
        for shard in self.shards.values():
            shard.rollback([s], kept)
        s.changed.clear()

    def erase(self, s: Slice[Any], session: str) -> dict[str, int] | None:
        """Deletes what every table has of a session, on behalf of a slice that must finish at once: what comes
        afterwards starts anew. Work on the session that isn't finished is given up and done again, afterwards.

        Returns how many values each table had; None where it can't be now: the slice is stale, its record comes again.
        """
        keys = {name: self.engine.tables[name].keys_of(session, shard) for name, shard in self.shards.items()}
        if self._at_work(s, session.encode(), keys):
            first = self._trackers[s.topic].spans[0] is s
            self.read_again()
            if not first:
                return None
            tracker, s.epoch = self._trackers[s.topic], self.epoch
            tracker.accept(s)
            self.engine.seek_now(TopicPartition(s.topic, self.partition), tracker.accepted)
        erased = {}
        s.erases = True
        for name, shard in self.shards.items():
            erased[name] = sum(shard.finished(key) is not None for key in keys[name])
            for key in keys[name]:
                shard.erase(s, key)
        return erased

    def _at_work(self, but: Slice[Any], key: bytes, keys: Mapping[str, list[bytes]]) -> bool:
        begun = [s for s in self.unfinished() if s is not but and s.begun]
        return any(key in s.keys for s in begun) or any(
            shard.held_by_work(one) for name, shard in self.shards.items() for one in keys[name]
        )

    @property
    def store(self) -> PartitionStore | None:
        """Its RocksDB, while it is open."""
        return self._store if self.open else None

    def unfinished(self) -> list[Slice[Any]]:
        """Slices that aren't part of the finished prefix."""
        return [s for tracker in self._trackers.values() for s in tracker.spans]

    def shard(self, table: str) -> Any:
        """A table's part here. Raises TaskError while the task isn't open, UsageError for a table that isn't the
        worker's."""
        try:
            return self.shards[table]
        except KeyError:
            if self.open:
                raise UsageError(
                    f"table {table!r} is not among this worker's: import its module before create_app, or give it to "
                    "in_memory() (docs/testing.md)"
                ) from None
            raise TaskError(f"partition {self.partition} is not open ({self.reason})") from None

    # -- finishing ----------------------------------------------------------------------------------------------------

    def advance(self, topic: str) -> None:
        """Slices have finished: what is now part of the finished prefix joins the next commit, or, where that has all
        that it can carry, the one after."""
        moved, newest, now = False, -1, time.monotonic()
        tracker = self._trackers[topic]
        while not self._full(tracker) and (s := tracker.advance()) is not None:
            moved, newest = True, max(newest, s.newest)
            self._settle(s)
            self._finished.append(Finished.of(s, now))
            if s.spans:
                s.judge_spans()
        if moved:
            if newest >= 0:
                self.clock.passed(topic, newest)
            self.touch()
            self.engine.wake.set()
            self.clock.strike()

    def _full(self, tracker: OffsetTracker[Slice[Any]]) -> bool:
        """Whether the next commit takes no more. An erasure never waits: what comes after it must start anew."""
        if not self._quota.full(time.monotonic()) or any(s.erases for s in tracker.spans):
            return False
        self._held = True
        return True

    def _go_on(self) -> None:
        """What was held may join the next commit."""
        if self._held:
            self._held = False
            for topic in self.topics:
                self.advance(topic)
            self.engine.wake.set()

    def fired(self, firing: Slice[Any]) -> None:
        """What was due was worked on, on finished state: it is part of the next commit."""
        self._settle(firing)
        self.touch()

    def changed_beside(self, values: int) -> None:
        """So many values were changed beside the work on events: they are part of the next commit."""
        self._quota.add(values)
        self.touch()

    @property
    def staged_room(self) -> bool:
        """Whether more may be staged for the next commit."""
        if self._quota.full(time.monotonic()) or self._checkpoints.crowded:
            return False
        return self._outboxes is None or self._outboxes.room(self._share)

    @property
    def _share(self) -> int:
        """Bytes of the worker's room that are this partition's."""
        return MAX_BYTES // max(1, len(self.engine.tasks))

    def _settle(self, s: Slice[Any]) -> None:
        assert self._outboxes is not None
        self._quota.add(s.size)
        if s.erases:
            self._erased = f"{s.topic}/{self.partition}/{s.first}"
        for shard, change in s.changed:
            shard.settle(change)
        for _, letter in s.dropped:
            self._outboxes.add(letter)
            self.engine.meters.dropped(s.topic, letter)
        for staged in s.outputs:
            self._outboxes.add(staged)

    def send_early(self, staged: Staged) -> None:
        """An output that doesn't wait for the commit of its event; the commit waits for it."""
        assert self._outboxes is not None
        self._outboxes.add_early(staged)

    def touch(self) -> None:
        """It has something to commit."""
        self.idle = False
        if self.waits_since is None:
            self.waits_since = time.monotonic()
        self.engine.committer.wake()

    # -- committing ---------------------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """Where the finished prefix of each source ends."""
        return {TopicPartition(topic, self.partition): t.position for topic, t in self._trackers.items()}

    def targets(self) -> set[TopicPartition]:
        """What its next commit will write to, as far as is known by now: most write to what the last one did."""
        touched = [name for name, shard in self.shards.items() if shard.touched]
        staged = self._outboxes.targets if self._outboxes is not None else ()
        return {*self._changelog.targets(touched), *staged, *self._written_to}

    def take(self, producer: Producer) -> Taken:
        """What is finished and not yet committed; committed_to() or fail() must follow."""
        self.idle = True
        changes: dict[str, Items] = {name: shard.take() for name, shard in self.shards.items()}
        for table, keys in self._changelog.orphans.items():
            written = {key for key, _ in changes[table]}
            changes[table] += [(k, self.shards[table].stored(k)) for k in keys - written]
        for table, version in self._versioned.items():
            if any(raw is not None and not key.startswith(RESERVED) for key, raw in changes[table]):
                self._changelog.versions[table] = version
        if self._erased:
            self._changelog.erased, self._erased = self._erased, ""
        records = self._changelog.records(producer, changes)
        assert self._outboxes is not None
        outputs = self._outboxes.take()
        self._written_to = {*records, *outputs.targets}
        finished, self._finished = self._finished, []
        taken = Taken(
            self._foreign | {topic: tracker.position for topic, tracker in self._trackers.items()},
            self.watermark,
            changes,
            records,
            outputs,
            finished,
            time.monotonic(),
        )
        self._quota.take(time.monotonic(), max(1, len(self.engine.tasks)))
        self._go_on()
        return taken

    def note(self, ends: Mapping[TopicPartition, int]) -> None:
        """Where the broker has put the records of the commit under way."""
        self._changelog.note(ends)

    def marker(self, producer: Producer, taken: Taken) -> Builders:
        """The last record of the commit."""
        return self._changelog.marker(producer, taken.positions, taken.watermark)

    def committed_to(self, taken: Taken, ends: Mapping[TopicPartition, int]) -> None:
        """The commit has succeeded."""
        if not self.open:
            return
        self.note(ends)
        self._changelog.orphans.clear()
        for name, items in taken.changes.items():
            self.shards[name].absorb(items)
        self.engine.watches.committed(self.partition, taken.changes)
        self.committed = taken.positions
        self.written.update({tp: ends[tp] for tp in taken.outputs.targets if tp in ends})
        self.waits_since = None if self.idle else taken.at
        self.engine.meters.commit_ended(taken.at, taken.finished)
        self._quota.committed(time.monotonic())
        self._go_on()
        self._checkpoints.committed(self._changelog.meta(taken.positions, taken.watermark))
