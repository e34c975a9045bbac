"""An aggregate that a model asks for later: where it begins, and that it is what a recount from there on gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tables.sessions as module
from engine.batch import Slice
from engine.store import Meta, PartitionStore, RocksMemory
from models.features import SessionFeature, parse
from tables.aggregates import Aggregates
from tables.keeping import Kept, SessionShard
from tables.sessions import sessions

OLD: Final = ("session.count", "session.sum.value")
NEW: Final = ("session.last.value", "session.variance.value", "session.max.other")
START_MS: Final = 1_700_000_000_000


class Event(NamedTuple):
    session: str
    ts: int
    value: float
    other: float


def features(*names: str) -> list[SessionFeature]:
    return [cast(SessionFeature, parse(name)) for name in names]


class Partition:
    """One partition on a worker that may die: a log, what is folded and finished of it, and what is committed."""

    def __init__(self, folder: Path) -> None:
        sessions.configure(features(*OLD), None, hot=2)
        self.log: list[Event] = []
        self.store = PartitionStore(folder, [sessions.name], RocksMemory())
        self.at_work: list[Slice[Any]] = []
        self.open()

    def open(self) -> None:
        self.shard = cast(SessionShard, sessions.shard(self.store))
        self.finished = self.read = self.store.meta.positions.get("observations", 0)
        self.at_work = []

    def feed(self, *events: Event) -> None:
        """Events come, and are folded as one slice."""
        self.log = [*self.log[: self.read], *events, *self.log[self.read + len(events) :]]
        s = cast(
            Slice[Any],
            SimpleNamespace(
                task=SimpleNamespace(shard=lambda name: self.shard),
                topic="observations",
                partition=0,
                first=self.read,
                oldest=START_MS + self.read,
                records=[None] * len(events),
                keys=[event.session.encode() for event in events],
                changed=[],
                newest=-1,
            ),
        )
        self.read += len(events)
        values = np.array([[getattr(event, field) for field in sessions.fields] for event in events])
        sessions.fold([s], np.array([float(event.ts) for event in events]), values)
        self.at_work.append(s)

    def finish(self) -> None:
        for s in self.at_work:
            for _, change in s.changed:
                self.shard.settle(change)
        self.at_work, self.finished = [], self.read

    def rewind(self) -> None:
        """Work fails: what isn't finished comes again."""
        self.shard.rollback(self.at_work, [])
        self.at_work, self.read = [], self.finished

    def commit(self) -> None:
        self.shard.absorb(self.shard.take())
        self.store.write({sessions.name: self.shard.hand_over()}, Meta(positions={"observations": self.finished}))
        self.shard.written()
        self.shard.tidy(self.at_work)

    def begin_fill(self, first: int, request: str = "m/1") -> None:
        """From an offset on, of what began later."""
        found = self.shard.late(self.shard.aggregates.features)
        late = [name for name, kept in found.items() if kept.offset is None or kept.offset > first]
        if late:
            self.shard.begin_fill(request, late, f"observations/0/{first}", START_MS + first)

    def fill(self, most: int) -> None:
        """Some of what is finished, as it stands in the log."""
        fill, filling = self.shard.keeping.fill, self.shard.filling
        if fill is not None and filling is not None:
            events = self.log[fill.position : min(self.finished, fill.position + most)]
            ts = np.array([float(event.ts) for event in events])
            values = np.array([[getattr(event, field) for field in filling.fields] for event in events], np.float64)
            values = values.reshape(len(events), len(filling.fields))
            self.shard.fill([event.session.encode() for event in events], ts, values, fill.position + len(events))

    def end_fill(self) -> None:
        """Both have come to one offset."""
        self.finish()
        self.fill(len(self.log))
        if self.shard.keeping.fill is not None:
            self.shard.end_fill("m")

    def kept(self, feature: str) -> Kept:
        return self.shard.keeping.columns[self.shard.aggregates.read_from[feature][0]]

    def columns(self, session: str) -> dict[str, float]:
        raw = self.shard.finished(session.encode())
        assert raw is not None
        row = self.shard.row_of(raw)[: self.shard.codec.own]
        return dict(zip(self.shard.aggregates.columns, row.tolist(), strict=True))

    def assert_recount(self, ttl_ms: float | None = None, of: Sequence[str] | None = None) -> None:
        """Every column is what the fold makes of the observations from the column's beginning on."""
        for feature in self.shard.aggregates.features if of is None else of:
            kept = self.kept(feature)
            first = self.finished if kept.source is None else int(kept.source.rpartition("/")[2])
            recount = Aggregates([feature], ttl_ms)
            rows: dict[str, np.ndarray[Any, Any]] = {}
            for event in self.log[first : self.finished]:
                state = rows.setdefault(event.session, recount.empty.copy()[None])
                values = np.array([[getattr(event, field) for field in recount.fields]])
                recount.fold(state, np.zeros(1, np.intp), np.array([float(event.ts)]), values)
            names = recount.read_from[feature]
            for session in {event.session for event in self.log[: self.finished]}:
                row = rows.get(session, recount.empty[None])[0]
                expected = {name: row[recount.columns.index(name)] for name in names}
                got = {name: self.columns(session)[name] for name in names}
                np.testing.assert_equal(got, expected, f"{feature} of {session}, from {first} on")


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    made = Partition(tmp_path / "p")
    yield made
    made.store.close()
    sessions.configure((), ttl=None, hot=1)


def event(number: int, session: str = "a") -> Event:
    return Event(session, START_MS + number, float(number), float(-number))


def test_an_aggregate_begins_with_the_first_observation_after_it_was_asked_for(partition: Partition) -> None:
    partition.feed(event(1), event(2, "b"))
    partition.finish()
    sessions.want(features("session.last.value"))
    assert partition.shard.late(["session.last.value", *OLD]) == {"session.last.value": Kept()}
    partition.feed(event(3))
    partition.finish()
    [(name, kept)] = partition.shard.late(sessions.features).items()
    assert (name, kept.source, kept.since) == ("session.last.value", "observations/0/2", START_MS + 2)
    assert partition.columns("a")["last.value"] == 3
    assert np.isnan(partition.columns("b")["last.value"]), "a session without an event since has no value yet"
    assert partition.columns("b")["sum.value"] == 2


def test_nothing_is_late_where_there_have_been_no_sessions(partition: Partition) -> None:
    sessions.want(features("session.last.value"))
    partition.feed(event(1))
    partition.finish()
    assert partition.shard.late(sessions.features) == {}


def test_a_slice_that_was_folded_before_and_finishes_afterwards_has_no_part_in_it(partition: Partition) -> None:
    partition.feed(event(1))
    sessions.want(features("session.last.value", "session.max.other"))
    partition.feed(event(2, "b"))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/1"
    partition.assert_recount()


def test_the_beginning_of_work_that_failed_is_none(partition: Partition) -> None:
    partition.feed(event(1), event(2))
    partition.finish()
    partition.feed(event(3))
    sessions.want(features("session.last.value"))
    partition.feed(event(4))
    partition.rewind()
    partition.feed(event(3), event(4))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/2"
    partition.assert_recount()


def test_a_partition_brings_along_what_its_last_owner_was_asked_for(partition: Partition) -> None:
    partition.feed(event(1))
    partition.finish()
    sessions.want(features("session.last.value"))
    partition.feed(event(2))
    partition.finish()
    partition.commit()
    sessions.configure(features(*OLD), None, hot=2)  # another worker, which has not heard of it yet
    partition.open()
    assert "session.last.value" in sessions.features
    partition.feed(event(3))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/1"
    partition.assert_recount()


def test_what_no_model_asks_for_any_more_goes_and_begins_anew_when_one_does(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SKEW_MS", -module.SKEW_MS)  # a worker that starts long after
    sessions.want(features("session.last.value", "session.variance.value"))
    partition.feed(event(1), event(2, "b"), event(3, "b"))
    partition.finish()
    partition.commit()
    sessions.configure(features(*OLD), None, hot=2)
    partition.open()
    partition.feed(event(4))
    partition.finish()
    partition.commit()
    sessions.configure(features(*OLD, "session.last.value", "session.variance.value"), None, hot=2)
    partition.open()
    partition.feed(event(5))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/4"
    assert np.isnan(partition.columns("b")["last.value"]), "what its row still has is of another life"
    partition.assert_recount()


def test_a_store_that_is_away_when_a_worker_starts_costs_no_aggregate(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SKEW_MS", -module.SKEW_MS)
    sessions.want(features("session.last.value"))
    partition.feed(event(1), event(2, "b"))
    partition.finish()
    partition.commit()
    sessions.configure((), None, hot=2)
    partition.open()
    partition.commit()  # of something else: no model answers here
    partition.open()
    sessions.want(features(*OLD, "session.last.value"))
    partition.feed(event(3))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/0"
    partition.assert_recount()


def test_rows_of_a_release_that_noted_nothing_go_on(partition: Partition) -> None:
    partition.feed(event(1), event(2))
    partition.finish()
    partition.commit()
    old = partition.store
    old.write({sessions.name: {key: None for key, _ in old.scan(sessions.name, b"\xffnote:")}})
    sessions.configure(features(*OLD, "session.last.value"), None, hot=2)
    partition.open()
    partition.feed(event(3))
    partition.finish()
    assert partition.columns("a")["sum.value"] == 6
    assert partition.shard.late(sessions.features).keys() == {"session.last.value"}


# -- filled from the log ---------------------------------------------------------------------------------------------


def test_what_is_filled_takes_the_place_of_what_began_late_and_the_work_goes_on_with_it(partition: Partition) -> None:
    partition.feed(event(1), event(2, "b"), event(3))
    partition.finish()
    sessions.want(features("session.last.value", "session.variance.value"))
    partition.feed(event(4))
    partition.finish()
    partition.begin_fill(1)
    partition.feed(event(5), event(6, "c"))
    partition.fill(2)
    assert partition.columns("a")["last.value"] == 4, "until it is done what began late counts"
    partition.commit()
    partition.open()
    assert partition.shard.keeping.fill is not None
    assert partition.shard.keeping.fill.position == 3, "it goes on where it was"
    partition.feed(event(5), event(6, "c"))
    partition.end_fill()
    partition.feed(event(7, "b"))
    partition.finish()
    assert partition.kept("session.last.value").source == "observations/0/1"
    assert partition.shard.keeping.filled == {"m": "m/1"}
    assert partition.columns("b")["seen.value"] == 2
    partition.assert_recount()
    partition.commit()
    partition.open()
    partition.assert_recount()


def test_a_session_that_is_over_or_erased_does_not_come_back(partition: Partition) -> None:
    partition.feed(event(1), event(2, "b"))
    partition.finish()
    sessions.want(features("session.last.value"))
    partition.feed(event(3))
    partition.finish()
    partition.shard.expire([b"b"])
    partition.begin_fill(0)
    partition.end_fill()
    assert partition.shard.finished(b"b") is None
    partition.commit()
    assert [key for key, _ in partition.shard.items(b"", 10)] == [b"a"]


def test_what_nobody_wants_to_be_filled_any_more_is_given_up(partition: Partition) -> None:
    partition.feed(event(1))
    partition.finish()
    sessions.want(features("session.last.value"))
    partition.feed(event(2))
    partition.finish()
    partition.begin_fill(0)
    partition.fill(1)
    partition.shard.give_up_fill()
    partition.commit()
    partition.open()
    assert partition.shard.keeping.fill is None
    partition.begin_fill(0, "m/2")
    partition.end_fill()
    partition.assert_recount()


@settings(max_examples=25, deadline=None)  # each opens a RocksDB
@given(
    events=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(-3, 3)), min_size=2, max_size=30),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 7)),
)
def test_in_whatever_order_events_come_and_sessions_end_what_is_filled_is_a_recount(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]], cuts: tuple[float, float, int]
) -> None:
    partition = Partition(tmp_path_factory.mktemp("filling") / "p")
    ttl = timedelta(milliseconds=15)
    sessions.configure(features(*OLD), ttl, hot=2)
    partition.open()
    log = [Event(session, START_MS + at, float(value), float(at)) for session, at, value in events]
    asked, first = 1 + int(cuts[0] * (len(log) - 2)), int(cuts[1] * len(log) / 2)
    partition.feed(*log[:asked])
    partition.finish()
    sessions.want(features(*NEW))
    partition.feed(log[asked])
    partition.finish()
    partition.begin_fill(first)
    for number, one in enumerate(log[asked + 1 :]):
        partition.fill(cuts[2])
        partition.feed(one)
        if number % 2:
            partition.fill(1)
            partition.finish()
            partition.commit()
    partition.end_fill()
    partition.assert_recount(ttl.total_seconds() * 1e3, NEW if first < asked else ())
    partition.store.close()


# -- all together ----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
        st.sampled_from(["finish", "commit", "rewind", "crash", "fill", "end_fill", "begin_fill", *NEW]),
    ),
    max_size=30,
)


@settings(max_examples=30, deadline=None)  # each opens a RocksDB
@given(steps=STEPS)
def test_whenever_it_is_asked_for_and_whatever_fails_it_is_a_recount_from_its_beginning_on(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str] | str]
) -> None:
    partition, number = Partition(tmp_path_factory.mktemp("keeping") / "p"), 0
    for step in steps:
        if isinstance(step, list):
            number += 1
            partition.feed(*(event(10 * number + i, session) for i, session in enumerate(step)))
        elif step == "crash":
            partition.open()
        elif step in NEW:
            sessions.want(features(step))
        elif step == "begin_fill":
            partition.begin_fill(partition.finished // 3, f"m/{number}")
        elif step == "fill":
            partition.fill(3)
        else:
            getattr(partition, step)()
    partition.finish()
    partition.assert_recount()
    partition.commit()
    partition.open()
    partition.assert_recount()
    partition.store.close()
