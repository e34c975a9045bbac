"""A condition is told when it begins, gets worse, or ends, and once in a while that it goes on."""

from __future__ import annotations

from models.drift.condition import REMIND_MS, Condition

DAY = REMIND_MS


def test_it_opens_worsens_and_ends_once_each() -> None:
    condition = Condition()
    looks = [(0, 1), (1, 2), (1, 3), (2, 4), (1, 5), (2, 6), (0, 7), (0, 8), (0, 9), (0, 10)]
    told = [(ts, seen) for level, ts in looks if (seen := condition.see(level, ts, calm=3))]
    assert told == [(2, ("opened", False)), (4, ("worsened", False)), (9, ("resolved", False))]
    assert condition == Condition(told=9)


def test_a_relapse_within_the_calm_is_the_same_one() -> None:
    condition = Condition()
    told = [condition.see(level, ts, calm=2) for ts, level in enumerate([1, 0, 1, 0, 1, 0, 0])]
    assert [seen for seen in told if seen] == [("opened", False), ("resolved", False)]


def test_reminders_become_rarer_and_there_is_none_in_the_calm() -> None:
    condition = Condition()
    told = [(day, condition.see(1, day * DAY, calm=9)) for day in range(100)]
    assert [(day, seen) for day, seen in told if seen] == [
        (0, ("opened", False)),
        *[(day, ("opened", True)) for day in (1, 3, 7, 15, 31, 63, 95)],
    ]
    assert condition.see(0, 1000 * DAY, calm=9) is None
    assert condition.see(2, 1001 * DAY, calm=9) == ("worsened", False)
    assert condition.see(1, 1002 * DAY, calm=9) == ("worsened", True)
