"""Key-value tables: a dict a partition, whose changes wait for the finished prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import TaskError, UsageError
from engine.batch import Slice, working_on
from engine.store import Meta, PartitionStore, RocksMemory
from engine.table import KeyValueShard, Table


class Visit(msgspec.Struct):
    pages: int
    last: str = ""


class Visits(Table[str, Visit]):
    """visitor -> pages seen. For this test."""

    name = "test-visits"


visits = Visits()


class Rig:
    def __init__(self, folder: Path) -> None:
        self.store = PartitionStore(folder, [visits.name], RocksMemory())
        self.shard = cast(KeyValueShard, visits.shard(self.store))

    def slice(self) -> Slice[Any]:
        s = cast(
            Slice[Any], SimpleNamespace(changed=[], stale=False, task=SimpleNamespace(shard=lambda name: self.shard))
        )
        working_on(s)
        return s

    def finish(self, s: Slice[Any]) -> None:
        for shard, change in s.changed:
            shard.settle(change)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "p")
    yield rig
    rig.store.close()


def test_it_reads_and_writes_like_a_dict(rig: Rig) -> None:
    rig.slice()
    assert visits.get("ann") is None
    assert "ann" not in visits
    visits["ann"] = Visit(1)
    visits["ann"] = Visit(visits["ann"].pages + 1, "/home")
    assert visits["ann"] == Visit(2, "/home")
    del visits["ann"]
    with pytest.raises(KeyError):
        visits["ann"]


def test_a_value_that_was_read_is_the_readers_own(rig: Rig) -> None:
    rig.slice()
    visits["ann"] = Visit(1)
    visits["ann"].pages = 99
    assert visits["ann"].pages == 1


def test_outside_of_an_event_it_says_where_it_may_be_used() -> None:
    import contextvars

    with pytest.raises(UsageError, match="for event in batch"):
        contextvars.Context().run(lambda: visits.get("ann"))


def test_two_tables_of_one_name_are_an_error() -> None:
    class Other(Table[str, int]):
        name = "test-visits"

    with pytest.raises(UsageError, match="test-visits"):
        Other()


def test_a_closed_store_is_an_error_that_reopens_the_task(rig: Rig) -> None:
    rig.store.close()
    rig.slice()
    with pytest.raises(TaskError, match="closed"):
        visits.get("ann")


Orders = st.lists(
    st.tuples(st.sampled_from(["put", "put", "finish"]), st.integers(0, 2), st.sampled_from("aab")), max_size=30
)


@settings(max_examples=25, deadline=None)
@given(acts=Orders)
@example([("put", 0, "a"), ("put", 1, "a"), ("put", 2, "a"), ("finish", 1, "a"), ("finish", 0, "a")])
@example([("put", 1, "a"), ("put", 0, "a"), ("put", 1, "a"), ("finish", 0, "a"), ("finish", 1, "a")])
def test_what_was_written_last_stays_in_whatever_order_slices_of_several_topics_finish(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int, str]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("table") / "p")
    topics = [rig.slice() for _ in range(3)]
    newest: dict[str, int] = {}
    written: list[dict[str, int]] = [{}, {}, {}]
    settled: dict[str, int] = {}
    """Key -> the number of the newest write that a finished slice has made."""
    for number, (act, topic, key) in enumerate(acts):
        if act == "put":
            working_on(topics[topic])
            if number % 4:
                visits[key] = Visit(number)
            else:
                del visits[key]
            newest[key] = number if number % 4 else -1
            written[topic][key] = number
        else:
            rig.finish(topics[topic])
            topics[topic] = rig.slice()
            settled |= {key: max(at, settled.get(key, 0)) for key, at in written[topic].items()}
            written[topic] = {}
            seen = {k.decode(): visits.decode(raw).pages for k, raw in rig.shard.items(b"", 10)}
            assert seen == {key: at for key, at in settled.items() if at % 4}
        found = rig.shard.get_many([b"a", b"b", b"c", b"a"])
        assert found == [rig.shard.get(key) for key in (b"a", b"b", b"c", b"a")]
        assert [visits.decode(raw).pages if raw else -1 for raw in found[:3]] == [newest.get(k, -1) for k in "abc"]
    for s in topics:
        rig.finish(s)
    rig.shard.absorb(rig.shard.take())
    left = {k.decode(): visits.decode(raw).pages for k, raw in rig.shard.items(b"", 10)}
    assert left == {key: number for key, number in newest.items() if number >= 0}
    rig.store.close()


def test_a_slice_that_is_given_up_brings_nothing_back_that_was_overtaken(rig: Rig) -> None:
    slow, quick, failed = rig.slice(), rig.slice(), rig.slice()
    for s, pages in ((slow, 1), (quick, 2)):
        working_on(s)
        visits["ann"] = Visit(pages)
    rig.finish(quick)
    working_on(failed)
    visits["ann"] = Visit(3)
    later = rig.slice()
    visits["bob"] = Visit(4)
    working_on(slow)
    visits["bob"] = Visit(5)
    rig.shard.rollback([failed], [slow, later])
    assert (visits["ann"], visits["bob"]) == (Visit(2), Visit(5))
    rig.finish(slow)
    rig.finish(later)
    assert dict(rig.shard.take()) == {b"ann": visits.encode(Visit(2)), b"bob": visits.encode(Visit(5))}


def test_what_is_forgotten_goes_with_the_next_commit_unless_a_slice_has_written_it(rig: Rig) -> None:
    s = rig.slice()
    visits["ann"] = visits["bob"] = Visit(1)
    rig.finish(s)
    at_work = rig.slice()
    visits["bob"] = Visit(2)
    assert rig.shard.forget([b"ann", b"bob"])
    assert (visits.get("ann"), visits.get("bob")) == (None, Visit(2))
    rig.finish(at_work)
    assert rig.shard.take() == [(b"ann", None), (b"bob", visits.encode(Visit(2)))]


Then = st.sampled_from(["finish", "undo", "checkpoint"])
Step = st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from("abc"), st.integers(0, 9))


@settings(max_examples=25, deadline=None)  # each opens a RocksDB
@given(slices=st.lists(st.tuples(st.lists(Step, max_size=4), Then), max_size=20))
def test_only_finished_slices_leave_a_trace(tmp_path_factory: pytest.TempPathFactory, slices: list[Any]) -> None:
    rig = Rig(tmp_path_factory.mktemp("table") / "p")
    expected: dict[str, int] = {}
    for steps, then in slices:
        s = rig.slice()
        mine = dict(expected)
        for action, key, number in steps:
            if action == "put":
                visits[key] = Visit(number)
                mine[key] = number
            elif key in visits:
                del visits[key]
                mine.pop(key, None)
        assert {k: visits[k].pages for k in "abc" if k in visits} == mine
        if then == "undo":
            rig.shard.rollback([s], [])
            continue
        rig.finish(s)
        expected = mine
        if then == "checkpoint":
            rig.shard.absorb(rig.shard.take())
            rig.store.write({visits.name: rig.shard.hand_over()}, Meta())
            rig.shard.written()
    seen = {k.decode(): visits.decode(raw).pages for k, raw in rig.shard.items(b"", 10)}
    assert seen == expected
    rig.store.close()
