"""Which turns stay: whole ones, in their order, and never more than there is room for."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from models.windows.recent import recent
from models.windows.semantic import HELD, MOST_TOKENS, MOST_TURNS, held, semantic
from models.windows.sinks import sinks
from models.windows.summary import fold, longest


@dataclass(frozen=True)
class Said:
    """A turn by its number."""

    number: int
    count: int
    pinned: bool = False
    folded: bool = False


def said(*counts: int, pinned: set[int] = frozenset(), folded: set[int] = frozenset()) -> list[Said]:  # type: ignore[assignment]
    return [Said(n, count, n in pinned or n in folded, n in folded) for n, count in enumerate(counts)]


def numbers(turns: list[Said]) -> list[int]:
    return [turn.number for turn in turns]


def test_semantic_tells_of_the_newest_turns_and_of_the_likest_before_them() -> None:
    turns = said(100, 100, 100, 100, 100, 100)
    likeness = [0.1, 0.9, 0.2, 0.8, 0.0, 0.0]
    assert numbers(semantic(turns, 600, likeness)) == [0, 1, 2, 3, 4, 5]
    assert numbers(semantic(turns, 400, likeness)) == [1, 3, 4, 5], "in their order"
    assert numbers(semantic(turns, 299, likeness)) == [1, 5], "turns stay whole"
    assert numbers(semantic(said(100, 100, 100, 100, 100, 100, pinned={0}), 300, likeness)) == [0, 1, 5]


def test_of_turns_that_are_as_like_the_newest_is_told() -> None:
    assert numbers(semantic(said(100, 100, 100, 100), 200, [0.5, 0.5, 0.5, 0.0])) == [2, 3]


def test_a_likely_turn_that_is_too_large_lets_smaller_ones_pass() -> None:
    assert numbers(semantic(said(50, 400, 100), 300, [0.1, 0.9, 0.0])) == [0, 2]


def test_semantic_holds_some_rooms_of_turns_for_later_questions() -> None:
    assert numbers(held(said(*[100] * (4 * HELD)), 200)) == list(range(2 * HELD, 4 * HELD))
    assert len(held(said(*[1] * 1000, pinned={0}), 4000)) == MOST_TURNS + 1, "but no more than its record can have"
    assert len(held(said(*[1000] * 100), 32_000)) == MOST_TOKENS // 1000


def test_sinks_drop_no_more_than_they_have_to() -> None:
    turns = said(100, 100, 100, 100, 100)
    assert numbers(sinks(turns, 400)) == [1, 2, 3, 4]
    assert numbers(recent(turns, 400)) == [2, 3, 4]


def test_the_oldest_turns_are_folded_with_the_summary_of_those_before_them() -> None:
    assert fold(said(100, 100, 100, 100), 400) is None
    parts = fold(said(100, 100, 100, 100, 100), 400)
    assert parts is not None
    assert (numbers(parts.old), numbers(parts.kept)) == ([0, 1, 2], [3, 4])
    parts = fold(said(100, 60, 100, 100, 100, pinned={0}, folded={1}), 400)
    assert parts is not None
    assert (numbers(parts.old), numbers(parts.kept)) == ([1, 2, 3], [0, 4])
    assert (longest(400), longest(4000)) == (100, 256)


turns_of = st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.integers(0, 3)), max_size=30)


@given(turns_of, st.integers(0, 2000))
def test_windows_keep_order_and_pinned_turns_and_never_more_than_fits(
    counts: list[tuple[int, bool, int]], room: int
) -> None:
    turns = [Said(n, count, pinned) for n, (count, pinned, _) in enumerate(counts)]
    pinned = [turn for turn in turns if turn.pinned]
    most = max(room, sum(turn.count for turn in pinned))
    likeness = [like / 3 for _, _, like in counts]
    parts = fold(turns, room)
    for kept in (semantic(turns, room, likeness), sinks(turns, room), parts.kept if parts else turns):
        assert numbers(kept) == sorted(numbers(kept))
        assert [turn for turn in kept if turn.pinned] == pinned
        assert sum(turn.count for turn in kept) <= most
    if parts:
        assert sorted(numbers(parts.old + parts.kept)) == list(range(len(turns)))
        free = sum(turn.count for turn in parts.kept if not turn.pinned)
        assert not free or sum(turn.count for turn in parts.kept) + longest(room) <= room, "there is room for a summary"
    assert semantic(turns, room, likeness) == semantic(turns, room, likeness)
