"""What a replay remembers: each letter goes back once, whatever was filtered, and however it was interrupted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.progress import MOST, Progress
from core.errors import HomunculusError

offsets = st.lists(st.integers(0, 2000), min_size=1, max_size=60, unique=True).map(sorted)


def run(progress: Progress, letters: list[int], wanted: set[int]) -> list[int]:
    """One replay over the letters that are there; returns what it sent."""
    sent = []
    for offset in (o for o in letters if o >= progress.start):
        if progress.waits(offset) and offset in wanted:
            sent.append(offset)
            progress.replayed(offset)
        elif progress.waits(offset):
            progress.kept(offset)
        else:
            progress.replayed(offset)
    return sent


@given(letters=offsets, filters=st.lists(st.sets(st.integers(0, 2000)), max_size=6), cuts=st.lists(st.integers(0, 60)))
def test_each_letter_goes_back_once_over_any_filters_and_interruptions(
    letters: list[int], filters: list[set[int]], cuts: list[int]
) -> None:
    noted: tuple[int, str] = (-1, "")
    sent: list[int] = []
    asked: set[int] = set()
    for wanted, cut in zip([*filters, set(letters)], [*cuts, *([60] * 10)], strict=False):
        there = letters[:cut]  # a replay that was interrupted, or letters that are still to come
        progress = Progress.decode(*noted)
        sent += run(progress, there, wanted)
        asked |= wanted & set(there)
        noted = progress.encode()
    assert sorted(sent) == sorted(asked)
    rest = run(Progress.decode(*noted), letters, set(letters))
    assert sorted(sent + rest) == letters


@given(letters=offsets, wanted=st.sets(st.integers(0, 2000)))
def test_what_is_noted_is_read_back_as_it_was(letters: list[int], wanted: set[int]) -> None:
    progress = Progress()
    sent = run(progress, letters, wanted)
    again = Progress.decode(*progress.encode())
    assert [o for o in letters if not again.waits(o)] == sent
    assert again.waits(letters[-1] + 1)


def test_a_replay_of_everything_is_noted_as_one_number() -> None:
    progress = Progress()
    run(progress, list(range(0, 10_000, 3)), set(range(10_000)))
    assert progress.encode() == (9_999 + 1, "")


def test_more_than_a_broker_keeps_is_an_error_that_says_what_to_do() -> None:
    progress = Progress()
    run(progress, list(range(4000)), set(range(0, 4000, 2)))
    with pytest.raises(HomunculusError, match="--source"):
        progress.encode()
    assert MOST < 4096
