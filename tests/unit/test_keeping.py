"""An aggregate that a model asks for later: where it begins, and that it is what a recount from there on gives."""

from __future__ import annotations

from collections.abc import Iterator
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

    def kept(self, feature: str) -> Kept:
        return self.shard.keeping.columns[self.shard.aggregates.read_from[feature][0]]

    def columns(self, session: str) -> dict[str, float]:
        raw = self.shard.finished(session.encode())
        assert raw is not None
        return dict(zip(self.shard.keeping.columns, self.shard.row_of(raw).tolist(), strict=True))

    def assert_recount(self) -> None:
        """Every column is what the fold makes of the observations from the column's beginning on."""
        for feature in self.shard.aggregates.features:
            kept = self.kept(feature)
            first = self.finished if kept.source is None else int(kept.source.rpartition("/")[2])
            recount = Aggregates([feature])
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


STEPS = st.lists(
    st.one_of(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
        st.sampled_from(["finish", "commit", "rewind", "crash", *NEW]),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)  # each opens a RocksDB
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
        else:
            getattr(partition, step)()
    partition.finish()
    partition.assert_recount()
    partition.commit()
    partition.open()
    partition.assert_recount()
    partition.store.close()
