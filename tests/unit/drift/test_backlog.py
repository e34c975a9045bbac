"""Scores that have piled up are looked at in pieces: the event loop has its turn between them."""

from __future__ import annotations

from typing import Any

from agents.drift import MOST, Told, _together
from models.drift.answers import Scored
from models.drift.command import Command

RESET = Command("reset", None, None, "ann", "control/0/1", 0)


def records(*sizes: int) -> list[Told]:
    """Scores of so many answers each; -1 is a person's command."""
    nowhere: Any = None
    return [
        Told(nowhere, i, RESET if size < 0 else Scored(0, b"", bytes(8 * size), b"", b""))
        for i, size in enumerate(sizes)
    ]


def places(told: list[Told]) -> list[list[int]]:
    return [[one.at for one in group] for group in _together(told)]


def test_scores_are_looked_at_together_up_to_a_bound() -> None:
    assert places(records(1, 2, 0, MOST - 3)) == [[0, 1, 2, 3]]
    assert places(records(MOST // 2, MOST // 2, 1, MOST)) == [[0, 1], [2], [3]]
    assert places(records(3 * MOST, 1)) == [[0], [1]]


def test_whatever_else_comes_is_looked_at_by_itself_and_in_its_place() -> None:
    assert places(records(1, -1, 0, 1, -1, -1, 0)) == [[0], [1], [2, 3], [4], [5], [6]]
    assert places(records(0, -1)) == [[0], [1]]
