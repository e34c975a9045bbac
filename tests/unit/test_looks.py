"""Which topics a fetch asks for: none is forgotten, those that flow never wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import looks as module
from engine.looks import BEHIND, LOOK_S, SILENT_S, Looks

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


def test_a_silent_topic_is_looked_at_now_and_then_while_others_flow_and_each_time_once_it_speaks(clock: Clock) -> None:
    looks = Looks({})
    looks.busy = True
    asked = 0
    for _ in range(400):  # 4 s of fetches, 10 ms apart
        clock.now += 0.01
        looks.came("observations", 100)
        found = names(looks)
        assert "observations" in found
        asked += "messages" in found
    silent = (4.0 - SILENT_S) / LOOK_S
    assert 100 + 0.8 * silent <= asked <= 102 + 1.2 * silent
    looks.came("messages", 100)
    for _ in range(5):
        clock.now += 0.001
        assert "messages" in names(looks)


def test_nothing_is_silent_where_no_records_flow(clock: Clock) -> None:
    looks = Looks({})
    for _ in range(100):
        clock.now += SILENT_S
        assert names(looks) == [*NAMES]


@given(st.lists(st.tuples(st.sampled_from([0.001, 0.03, 0.2, 3.0]), st.sampled_from(["", "observations", "scores"]))))
def test_every_topic_is_asked_for_within_its_time_and_each_fetch_asks_for_something(
    steps: list[tuple[float, str]],
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        looks, last = Looks({"scores": REST_S}), {name: clock.now for name, _ in TOPICS}
        looks.busy = True
        for seconds, came in steps:
            clock.now += seconds
            found = names(looks)
            assert found
            last.update((name, clock.now) for name in found)
            assert all(clock.now - at < (REST_S if name == "scores" else LOOK_S) for name, at in last.items())
            if came:
                looks.came(came, 10)
