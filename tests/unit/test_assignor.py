"""Who gets which partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.assignor import deal, deal_copies

Held = st.dictionaries(st.sampled_from("abcde"), st.sets(st.integers(0, 15)), min_size=1)


@given(count=st.integers(0, 16), held=Held)
def test_every_partition_has_one_owner_and_shares_differ_by_one_at_most(count: int, held: dict[str, set[int]]) -> None:
    dealt = deal(range(count), held)
    assert sorted(n for numbers in dealt.values() for n in numbers) == list(range(count))
    sizes = [len(numbers) for numbers in dealt.values()]
    assert max(sizes) - min(sizes) <= 1


@given(count=st.integers(1, 16), members=st.sets(st.sampled_from("abcde"), min_size=1))
def test_nothing_moves_while_the_members_stay(count: int, members: set[str]) -> None:
    dealt = deal(range(count), {member: set() for member in members})
    assert deal(range(count), dealt) == dealt


@given(count=st.integers(1, 16), members=st.sets(st.sampled_from("abcd"), min_size=1))
def test_a_new_worker_takes_its_share_and_nothing_else_moves(count: int, members: set[str]) -> None:
    before = deal(range(count), {member: set() for member in members})
    after = deal(range(count), {**before, "new": set()})
    moved = sum(len(before[member] - after[member]) for member in members)
    assert moved == len(after["new"])


@given(count=st.integers(1, 16), members=st.sets(st.sampled_from("abcde"), min_size=2))
def test_when_a_worker_leaves_only_its_partitions_move(count: int, members: set[str]) -> None:
    before = deal(range(count), {member: set() for member in members})
    gone = min(members)
    after = deal(range(count), {m: numbers for m, numbers in before.items() if m != gone})
    for member, numbers in after.items():
        assert before[member] <= numbers


@given(count=st.integers(1, 16), held=Held, copied=Held)
def test_copies_change_no_share(count: int, held: dict[str, set[int]], copied: dict[str, set[int]]) -> None:
    dealt = deal(range(count), held, copied)
    assert sorted(n for numbers in dealt.values() for n in numbers) == list(range(count))
    sizes = [len(numbers) for numbers in dealt.values()]
    assert max(sizes) - min(sizes) <= 1


@given(count=st.integers(1, 16), members=st.sets(st.sampled_from("abcde"), min_size=2), number=st.integers(1, 2))
def test_a_partition_has_its_copies_elsewhere(count: int, members: set[str], number: int) -> None:
    dealt = deal(range(count), {member: set() for member in members})
    copies = deal_copies(number, dealt, {})
    for member, numbers in copies.items():
        assert numbers.isdisjoint(dealt[member])
    for partition in range(count):
        assert sum(partition in numbers for numbers in copies.values()) == min(number, len(members) - 1)


def test_the_worker_with_a_copy_takes_over() -> None:
    held = {"a": {0, 1}, "b": {2, 3}, "c": {4, 5}}
    copies = deal_copies(1, held, {})
    rest = {member: numbers for member, numbers in held.items() if member != "a"}
    dealt = deal(range(6), rest, copies)
    for member, numbers in dealt.items():
        assert numbers - rest[member] <= copies[member]


@given(count=st.integers(1, 16), members=st.sets(st.sampled_from("abcde"), min_size=2))
def test_no_copy_moves_while_the_members_stay(count: int, members: set[str]) -> None:
    dealt = deal(range(count), {member: set() for member in members})
    copies = deal_copies(1, dealt, {})
    assert deal_copies(1, deal(range(count), dealt, copies), copies) == copies
