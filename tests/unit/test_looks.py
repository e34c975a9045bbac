"""Which topics a fetch asks for: none is forgotten on any broker, and only those wait whose agents like to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import looks as module
from engine.looks import BEHIND, Looks

REST_S = 0.5
NAMES = ("observations", "messages", "scores")
TOPICS: list[tuple[str, Any]] = [(name, [(n, 0, 1) for n in range(8)]) for name in NAMES]
BROKERS = (1, 2, 3)


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


def names(looks: Looks, broker: int = 1) -> list[str]:
    return [name for name, _ in looks.due(broker, TOPICS)]


def test_a_topic_that_rests_is_asked_for_as_often_as_its_agent_likes(clock: Clock) -> None:
    looks = Looks({"scores": REST_S})
    assert names(looks) == [*NAMES]
    looks.came("scores", 100)
    for _ in range(4):
        clock.now += REST_S / 5
        assert names(looks) == ["observations", "messages"]
    clock.now += REST_S / 5
    assert names(looks) == [*NAMES]


def test_each_broker_is_asked_for_the_partitions_that_it_has(clock: Clock) -> None:
    looks = Looks({"scores": REST_S})
    for _ in range(3):
        assert all(names(looks, broker) == [*NAMES] for broker in BROKERS)
        assert not any("scores" in names(looks, broker) for broker in BROKERS)
        clock.now += REST_S


def test_one_that_is_far_behind_does_not_rest(clock: Clock) -> None:
    looks = Looks({"scores": REST_S})
    names(looks)
    looks.came("scores", BEHIND)
    assert "scores" in names(looks)


def test_fetches_of_one_broker_may_be_kept_apart(clock: Clock) -> None:
    looks = Looks({})
    assert looks.early(1) == 0.0
    names(looks, 1)
    assert looks.early(1) == 0.0, "nobody has asked for it"
    looks.apart_s = 0.08
    assert looks.early(1) == pytest.approx(0.08)
    assert looks.early(2) == 0.0, "another one hasn't been asked"
    clock.now += 0.05
    assert looks.early(1) == pytest.approx(0.03)
    clock.now += 0.03
    assert looks.early(1) == pytest.approx(0.0)


@given(st.lists(st.tuples(st.sampled_from([0.001, 0.03, 0.2, 3.0]), st.sampled_from(BROKERS))))
def test_every_topic_is_asked_for_within_its_time_of_each_broker(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        looks, last = Looks({"scores": REST_S}), dict.fromkeys(BROKERS, -REST_S)
        for seconds, broker in steps:
            clock.now += seconds
            found = names(looks, broker)
            assert found[:2] == ["observations", "messages"]
            assert ("scores" in found) == (clock.now - last[broker] >= REST_S)
            if "scores" in found:
                last[broker] = clock.now
