"""What may be committed while work finishes in any order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.offsets import OffsetTracker


@dataclass
class Work:
    """Records that finish together."""

    first: int
    last: int
    size: int
    done: bool = False

    @property
    def weight(self) -> int:
        return 100 * self.size


def finished(tracker: OffsetTracker[Work]) -> list[Work]:
    """All that has become part of the finished prefix."""
    found = []
    while (work := tracker.advance()) is not None:
        found.append(work)
    return found


@given(order=st.permutations(range(40)), compacted=st.sets(st.integers(0, 39)))
def test_a_commit_never_passes_a_record_in_flight(order: list[int], compacted: set[int]) -> None:
    works = {offset: Work(offset, offset, 1) for offset in range(40) if offset not in compacted}
    tracker: OffsetTracker[Work] = OffsetTracker(0)
    for work in works.values():
        tracker.accept(work)
    in_flight = set(works)
    for offset in (o for o in order if o in works):
        works[offset].done = True
        in_flight.discard(offset)
        finished(tracker)
        assert tracker.position <= min(in_flight, default=40)
        assert all(w.done for w in works.values() if w.last < tracker.position)
        assert tracker.unfinished == sum(1 for o in works if o >= tracker.position)
        assert tracker.weight == 100 * tracker.unfinished
    assert tracker.position == max(works, default=-1) + 1


@given(sizes=st.lists(st.integers(1, 5), max_size=30), data=st.data())
def test_effects_leave_in_the_order_of_their_records_each_once(sizes: list[int], data: st.DataObject) -> None:
    tracker: OffsetTracker[Work] = OffsetTracker(0)
    works, at = [], 0
    for size in sizes:
        works.append(Work(at, at + size - 1, size))
        at += size + data.draw(st.integers(0, 3))
        tracker.accept(works[-1])
    left = []
    for work in data.draw(st.permutations(works)):
        work.done = True
        left += finished(tracker)
    assert left == works
    assert tracker.unfinished == 0


@given(done=st.lists(st.booleans(), min_size=1, max_size=30))
def test_a_rewind_gives_up_exactly_what_was_not_in_the_finished_prefix(done: list[bool]) -> None:
    tracker: OffsetTracker[Work] = OffsetTracker(0)
    works = [Work(i, i, 1, flag) for i, flag in enumerate(done)]
    for work in works:
        tracker.accept(work)
    kept = finished(tracker)
    dropped = tracker.rewind()
    assert kept + dropped == works
    assert tracker.accepted == tracker.position == len(kept)
    assert tracker.weight == 0
    assert tracker.spans == []


def test_one_slice_may_become_many_that_finish_on_their_own() -> None:
    tracker: OffsetTracker[Work] = OffsetTracker(10)
    whole = Work(10, 12, 3)
    tracker.accept(whole)
    parts = [Work(10, 10, 1), Work(11, 11, 1), Work(12, 12, 1)]
    tracker.replace(whole, parts)
    parts[1].done = True
    assert finished(tracker) == []
    parts[0].done = True
    assert finished(tracker) == parts[:2]
    assert tracker.position == 12
