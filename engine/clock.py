"""Event time in one partition: its watermark, and the firing of what is due by it or by the clock.

What is due fires in the order of its time, in one of two places. Between two events of an agent that asked for event
time: as part of their slice, so that it doesn't depend on how records were batched. And between slices, where the
watermark has moved otherwise or the clock has: then on finished state alone, and as finished work of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from core.clock import latest_ms
from core.errors import FatalError, TaskError
from engine.batch import Slice, working_on
from engine.dead_letters import dead_letter
from engine.late import iso, late_record
from engine.table import KeyValueShard, Shard
from engine.timed import Firing, Time, TimedShard, TimedTable

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.task import PartitionTask

log = logging.getLogger(__name__)

NEVER: Final = -1
TICK_S: Final = 0.1
"""Between looks at the clock, and at what had to be put off."""
SPELL_S: Final = 0.005
PAUSE_S: Final = 0.002
"""Firing holds the event loop this long, then lets others have it."""
TELL_S: Final = 10.0
"""Between two lines of the log about late events."""
MAX_IN_SLICE: Final = 1000
"""Firings among the events of one slice; what else is due follows after it."""


class _Due(NamedTuple):
    at: int
    order: int
    table: TimedTable[Any, Any]
    shard: TimedShard
    key: bytes


class PartitionClock:
    """What an open task knows of time. Made anew when the task is."""

    def __init__(self, task: PartitionTask, shards: Mapping[str, Shard]) -> None:
        self._task = task
        self._lateness = task.engine.settings.allowed_lateness // timedelta(milliseconds=1)
        self._finished: dict[str, int] = {}
        """Topic -> its newest event time less the allowed lateness, of its finished prefix."""
        self._given: dict[str, tuple[int, int]] = {}
        """And of all that its agent was given, with the watermark that it has seen."""
        self._timed: dict[Time, list[tuple[int, TimedTable[Any, Any], TimedShard]]] = {
            Time.EVENT: [],
            Time.PROCESSING: [],
        }
        for order, (name, table) in enumerate(task.engine.tables.items()):
            if isinstance(table, TimedTable) and name in shards:
                self._timed[table.time].append((order, table, cast(TimedShard, shards[name])))
        self._idle = not any(self._timed.values())
        self._late = 0
        self._told = -TELL_S
        self._again: asyncio.TimerHandle | None = None

    # -- event time ---------------------------------------------------------------------------------------------------

    def passed(self, topic: str, newest: int) -> None:
        """The finished prefix of a topic has come to an event time: the watermark follows."""
        self._finished[topic] = max(newest - self._lateness, self._finished.get(topic, NEVER))
        self._follow()

    def _follow(self) -> None:
        """Of the topics that still have records to be worked on, the one that is furthest behind decides. One that has
        none holds nobody back; where none has any, the newest decides."""
        task, limit = self._task, self._limit()
        newest = max(self._finished.values(), default=NEVER) if limit is None else limit
        task.watermark = max(task.watermark, newest)

    def _limit(self, but: str = "") -> int | None:
        """What the other topics hold the watermark at; None where they don't. Events that an agent has aren't passed
        either."""
        task = self._task
        timed = self._finished.keys() | task.engine.timed_sources
        if len(timed) <= 1:
            return None
        behind = [t for t in task.topics if t != but and t in timed and task.behind(t)]
        holding = [self._finished.get(t, NEVER) for t in behind]
        holding += [s.marks[0] for s in task.unfinished() if s.topic in behind and s.marks and not s.done]
        return min(holding, default=None)

    def reset(self) -> None:
        """Unfinished work was given up: it will move the watermark again."""
        self._given.clear()

    def mark(self, s: Slice[Any]) -> None:
        """Takes late events out of a slice, and notes the watermark before the first that stays and after each.

        Events ahead of the clock don't move it: they would make those of everybody else late.
        """
        finished = self._finished.get(s.topic, NEVER)
        mark, watermark = self._given.get(s.topic, (NEVER, NEVER))
        mark, watermark = max(mark, finished), max(watermark, self._task.watermark)
        limit = self._limit(but=s.topic)
        marks = s.marks = [watermark]
        now, late = latest_ms(), []
        for i, event in enumerate(s.events):
            ts = event.ts
            if ts < watermark:
                late.append(i)
                s.dropped.append((s.records[i].offset, late_record(s, s.records[i], ts, watermark)))
                continue
            if ts <= now:
                s.newest = max(s.newest, ts)
                mark = max(mark, ts - self._lateness)
                watermark = max(watermark, mark if limit is None else min(mark, limit))
            marks.append(watermark)
        self._given[s.topic] = mark, watermark
        if late:
            gone = set(late)
            s.events = [event for i, event in enumerate(s.events) if i not in gone]
            s.records = [record for i, record in enumerate(s.records) if i not in gone]
            self._tell(s, len(late), watermark)

    def _tell(self, s: Slice[Any], late: int, watermark: int) -> None:
        self._late += late
        if time.monotonic() - self._told > TELL_S:
            self._told = time.monotonic()
            log.warning(
                "%d late events of %s/%d since it was opened went to late: they are older than its watermark, %s now",
                self._late,
                s.topic,
                s.partition,
                iso(watermark),
            )

    # -- among the events of a slice ----------------------------------------------------------------------------------

    def between(self, s: Slice[Any]) -> Iterator[Any]:
        """The events of a slice; what is due after one fires before the next, as part of the slice."""
        assert s.marks is not None
        left = MAX_IN_SLICE
        for event, watermark in zip(s.events, s.marks[1:], strict=True):
            yield event
            while left and not s.stale and (due := self._first(Time.EVENT, watermark)) is not None:
                left -= 1
                firing = self._firing(self._task, due)
                self._call(firing, due)
                s.changed += firing.changed
                s.outputs += firing.outputs
                working_on(s)

    # -- between slices -----------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Fires what is due on finished state, and comes back for what is left. What is at work is waited for: the
        watermark doesn't pass events that an agent still has, a key doesn't fire while an agent has an event of it or
        what a firing reads isn't finished."""
        task, now = self._task, self._task.engine.now_ms()
        if self._idle or not task.open:
            return
        self._follow()
        if not (self._due(Time.EVENT, task.watermark) or self._due(Time.PROCESSING, now)):
            return
        open_slices = [s for s in task.unfinished() if not s.done]
        at_work = {key for s in open_slices if s.begun for key in s.keys}
        watermark = min([task.watermark, *(s.marks[0] for s in open_slices if s.marks)])
        put_off: list[tuple[TimedShard, tuple[int, bytes]]] = []
        end = time.monotonic() + SPELL_S
        try:
            for kind, limit in ((Time.EVENT, watermark), (Time.PROCESSING, now)):
                while (due := self._first(kind, limit)) is not None:
                    if time.monotonic() > end or not task.staged_room:
                        self._soon()
                        return
                    firing = self._firing(cast("PartitionTask", _Settled(task)), due)
                    if due.key in at_work or not self._call(firing, due):
                        due.shard.put_off((due.at, due.key))
                        put_off.append((due.shard, (due.at, due.key)))
                    else:
                        task.fired(firing)
        except TaskError:
            return  # the task is being closed
        finally:
            for shard, entry in put_off:
                shard.expect(entry)

    @property
    def overdue(self) -> bool:
        """Whether something is due, as far as is known, that has not fired: it has been put off."""
        return self._due(Time.EVENT, self._task.watermark) or self._due(Time.PROCESSING, self._task.engine.now_ms())

    def _soon(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(PAUSE_S, self._strike_again)

    def _strike_again(self) -> None:
        self._again = None
        if self._task.clock is self:
            self.strike()

    # -- firing -------------------------------------------------------------------------------------------------------

    def _due(self, kind: Time, limit: int) -> bool:
        return any(shard.earliest(limit) for _, _, shard in self._timed[kind])

    def _first(self, kind: Time, limit: int) -> _Due | None:
        first: _Due | None = None
        for order, table, shard in self._timed[kind]:
            if (entry := shard.first(limit)) is not None and (first is None or (entry[0], order) < first[:2]):
                first = _Due(entry[0], order, table, shard, entry[1])
        return first

    def _firing(self, task: PartitionTask, due: _Due) -> Firing:
        raw = due.shard.get(due.key)
        assert raw is not None
        return Firing(task, due.table, due.key, due.at, raw)

    def _call(self, firing: Firing, due: _Due) -> bool:
        """Whether it has fired: False puts it off. One that can't fire is a dead letter, and gone."""
        working_on(firing)
        try:
            due.table.fire(due.table.decode_key(due.key), due.at)
        except _BusyError:
            self._task.undo(firing)
            return False
        except (TaskError, FatalError):
            raise
        except Exception as error:
            log.error("%s failed and goes to dead-letters", firing.source(0), exc_info=error)
            self._task.undo(firing)
            due.shard.put(firing, due.key, None)
            firing.outputs[:] = [dead_letter(firing, firing.records[0], error)]
        finally:
            firing.done = True
        return True


class _BusyError(Exception):
    """A firing needs what a slice at work has written."""


class _Settled:
    """The task as a firing between slices has it: only what is finished may be read or written."""

    def __init__(self, task: PartitionTask) -> None:
        self.engine, self.partition, self.epoch = task.engine, task.partition, task.epoch
        self._task = task
        self._views: dict[str, _View] = {}

    def shard(self, table: str) -> Any:
        shard = self._task.shard(table)
        if not isinstance(shard, KeyValueShard):
            return shard
        return self._views.setdefault(table, _View(shard))


class _View:
    """A table's part that is finished, and what the firing has written itself."""

    def __init__(self, shard: KeyValueShard) -> None:
        self._shard = shard
        self._own: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return self._shard.get(key)

    def put(self, s: Slice[Any], key: bytes, value: bytes | None) -> None:
        self._check(key)
        self._own.add(key)
        self._shard.put(s, key, value)

    def _check(self, key: bytes) -> None:
        if key not in self._own and self._shard.at_work(key):
            raise _BusyError


async def tick(engine: Engine) -> None:
    """Looks at every partition's clock, for ever."""
    while True:
        await asyncio.sleep(TICK_S)
        for task in list(engine.tasks.values()):
            task.clock.strike()
