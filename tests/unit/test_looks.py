"""Which topics a fetch asks for: none is forgotten, and only those wait whose agents like to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import looks as module
from engine.looks import BEHIND, Looks

REST_S = 0.5
NAMES = ("observations", "messages", "scores")
TOPICS: list[tuple[str, Any]] = [
    (name, [(n, 0, 1) for n in range(8)]) for name in ("observations", "messages", "scores")
]


class Clock:
    """Of the module under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def names(looks: Looks) -> list[str]:
    return [name for name, _ in looks.due(TOPICS)]


def test_a_topic_that_rests_is_asked_for_as_often_as_its_agent_likes(clock: Clock) -> None:
    looks = Looks({"scores": REST_S})
    assert names(looks) == ["observations", "messages", "scores"]
    looks.came("scores", 100)
    for _ in range(4):
        clock.now += REST_S / 5
        assert names(looks) == ["observations", "messages"]
    clock.now += REST_S / 5
    assert names(looks) == ["observations", "messages", "scores"]


def test_one_that_is_far_behind_does_not_rest(clock: Clock) -> None:
    looks = Looks({"scores": REST_S})
    names(looks)
    looks.came("scores", BEHIND)
    assert "scores" in names(looks)


@given(st.lists(st.tuples(st.sampled_from([0.001, 0.03, 0.2, 3.0]), st.sampled_from(["", "observations", "scores"]))))
def test_every_topic_is_asked_for_within_its_time_and_each_fetch_asks_for_something(
    steps: list[tuple[float, str]],
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        looks, last = Looks({"scores": REST_S}), {name: clock.now for name, _ in TOPICS}
        for seconds, came in steps:
            clock.now += seconds
            found = names(looks)
            assert found
            last.update((name, clock.now) for name in found)
            assert all(clock.now - at < (REST_S if name == "scores" else 1e-9) for name, at in last.items())
            if came:
                looks.came(came, 10)
