"""Answers of several partitions reach the detectors in one order, however they arrive."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.drift.answers import Answers
from models.drift.ordering import WAIT_MS, Ordering, OrderingState

Key = tuple[int, int, int]


def answers(partition: int, first: int, ts: list[int]) -> Answers:
    """Of one partition, from an offset on."""
    n = len(ts)
    return Answers(
        np.full(n, partition, np.int32),
        np.arange(first, first + n, dtype=np.int64),
        np.array(ts, np.int64),
        np.zeros(n, np.uint16),
        np.full(n, 0.9, np.float32),
        np.linspace(0, 1, n, dtype=np.float32),
        None,
    )


def keys(released: Answers | None) -> list[Key]:
    """(ts, partition, offset) of each."""
    if released is None:
        return []
    return list(zip(released.ts.tolist(), released.partition.tolist(), released.offset.tolist(), strict=True))


def restored(ordering: Ordering, partitions: int) -> Ordering:
    """As after a restart."""
    raw = msgspec.msgpack.encode(ordering.state)
    return Ordering(partitions, 0, msgspec.msgpack.decode(raw, type=OrderingState))


def test_one_partition_waits_for_nobody() -> None:
    ordering = Ordering(1, 0)
    assert keys(ordering.merge(answers(0, 0, [10, 30, 20]), 1)) == [(10, 0, 0), (30, 0, 1), (20, 0, 2)]
    assert ordering.waiting == 0


def test_an_answer_waits_until_every_partition_has_passed_its_time() -> None:
    ordering = Ordering(2, 0)
    assert keys(ordering.merge(answers(0, 0, [10, 20, 30]), 1)) == []
    assert keys(ordering.merge(answers(1, 0, [15, 25]), 2)) == [(10, 0, 0), (15, 1, 0), (20, 0, 1)]
    assert keys(ordering.merge(answers(1, 2, [40]), 3)) == [(25, 1, 1)]


def test_a_partition_without_events_holds_nobody_back_for_longer_than_a_second() -> None:
    ordering = Ordering(2, 0)
    assert keys(ordering.merge(answers(0, 0, [10, 20]), 0)) == []
    assert keys(ordering.merge(answers(0, 2, [30]), WAIT_MS)) == [(10, 0, 0), (20, 0, 1), (30, 0, 2)]
    assert keys(ordering.merge(answers(0, 3, [40]), WAIT_MS + 1)) == [(40, 0, 3)]


def test_what_was_seen_changes_nothing() -> None:
    ordering = Ordering(1, 0)
    ordering.merge(answers(0, 0, [10, 20, 30]), 1)
    assert keys(ordering.merge(answers(0, 1, [20, 30, 40]), 2)) == [(40, 0, 3)]
    assert keys(ordering.merge(answers(0, 0, [10]), 3)) == []


def test_a_topic_that_was_made_anew_goes_on_with_newer_events() -> None:
    ordering = Ordering(1, 0)
    ordering.merge(answers(0, 500, [10, 20]), 1)
    assert keys(ordering.merge(answers(0, 0, [21, 22]), 2)) == [(21, 0, 0), (22, 0, 1)]


def test_what_waits_is_bounded() -> None:
    ordering = Ordering(2, 0)
    released = ordering.merge(answers(0, 0, list(range(ordering.most + 10))), 1)
    assert len(keys(released)) == 10
    assert ordering.waiting == ordering.most
    assert len(msgspec.msgpack.encode(ordering.state)) < 50_000


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_order_is_the_same_however_partitions_are_interleaved_and_cut(data: st.DataObject) -> None:
    times = data.draw(
        st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=40), min_size=1, max_size=4), label="event times"
    )
    n = len(times)
    left, at = [list(one) for one in times], [0] * n
    ordering, seen = Ordering(n, 0), list[Key]()
    while any(left):
        which = data.draw(st.sampled_from([i for i in range(n) if left[i]]))
        size = data.draw(st.integers(1, len(left[which])))
        taken, left[which] = left[which][:size], left[which][size:]
        ordering.add(answers(which, at[which], taken), 5)
        at[which] += size
        if data.draw(st.booleans()):
            seen += keys(ordering.turn())
            ordering = restored(ordering, n)
    seen += keys(ordering.turn())
    wanted = []
    for partition, one in enumerate(times):
        newest = -1
        for offset, ts in enumerate(one):
            newest = max(newest, ts)
            wanted.append((newest, partition, offset, ts))
    order = [(ts, partition, offset) for _, partition, offset, ts in sorted(wanted)]
    assert seen == order[: len(seen)]
    held = len(order) - len(seen)
    assert held == ordering.waiting
    if n == 1:
        assert held == 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_records_that_are_taken_together_are_ordered_as_one_by_one(data: st.DataObject) -> None:
    together, alone = Ordering(3, 0), Ordering(3, 0)
    now, at = 0, [0, 0, 0]
    for _ in range(data.draw(st.integers(1, 4))):
        records: list[tuple[Answers, int]] = []
        for _ in range(data.draw(st.integers(1, 8))):
            which, ts = data.draw(st.integers(0, 2)), data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5))
            first = max(at[which] - data.draw(st.sampled_from([0, 0, 0, 2])), 0)  # some come twice
            at[which] = max(at[which], first + len(ts))
            now += data.draw(st.sampled_from([1, 10, WAIT_MS]))
            records.append((answers(which, first, ts), now))
        joined = Answers.joined([one for one, _ in records])
        together.add_all(joined, [len(one) for one, _ in records], [written for _, written in records])
        for one, written in records:
            alone.add(one, written)
        assert keys(together.turn()) == keys(alone.turn())
        assert msgspec.msgpack.encode(together.state) == msgspec.msgpack.encode(alone.state)


def test_offsets_of_a_partition_never_change_places() -> None:
    ordering = Ordering(3, 0)
    seen: list[Key] = []
    rng = np.random.default_rng(5)
    at = [0, 0, 0]
    for turn in range(300):
        which = int(rng.integers(3))
        ts = (turn * 10 + rng.integers(-200, 200, 5)).tolist()
        seen += keys(ordering.merge(answers(which, at[which], ts), turn * 40))
        at[which] += 5
    for partition in range(3):
        offsets = [offset for _, one, offset in seen if one == partition]
        assert all(a < b for a, b in pairwise(offsets))


def test_what_waits_can_be_had_at_once() -> None:
    ordering = Ordering(2, 0)
    ordering.merge(answers(0, 0, [10, 20]), 1)
    assert keys(ordering.flush()) == [(10, 0, 0), (20, 0, 1)]
    assert (ordering.waiting, ordering.flush()) == (0, None)
    assert keys(restored(ordering, 2).merge(answers(1, 0, [15, 30]), 2)) == [(15, 1, 0)]
