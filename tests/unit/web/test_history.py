"""What a worker remembers of the last five minutes, a second each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from engine.engine import Engine
from engine.meters import Meters
from models.sureness import Sureness
from web.history import LENGTH, History, Rated


class Bench:
    """Meters and one version, as an engine has them."""

    def __init__(self) -> None:
        self.meters = Meters()
        self.version: Any = SimpleNamespace(manifest=SimpleNamespace(name="churn"), version="2", sureness=Sureness())
        engine = SimpleNamespace(meters=self.meters, models=SimpleNamespace(versions=lambda: [self.version]))
        self.history = History(cast(Engine, engine))
        self.now = self.history._at
        self.t = 1000

    def second(self, events: int = 0, latency_s: float = 0.02) -> None:
        self.meters.committed["observations"] += events
        if events:
            self.meters.latency.observe(latency_s, events)
        self.now += 1
        self.t += 1
        self.history.take(self.t, self.now)


def test_a_second_has_its_rate_and_the_latencies_of_the_last_five() -> None:
    bench = Bench()
    bench.second(100, 0.02)
    bench.second(300, 0.2)
    for _ in range(5):
        bench.second()
    first, second, *_, last = bench.history.since(0)
    assert (first.rate, second.rate, last.rate) == (100.0, 300.0, 0.0)
    assert first.p99 is not None
    assert 15 <= first.p99 <= 20
    assert second.p99 is not None
    assert 150 <= second.p99 <= 200
    assert last.p99 is None


def test_only_what_is_new_is_told_and_only_five_minutes_are_kept() -> None:
    bench = Bench()
    for _ in range(LENGTH + 10):
        bench.second(1)
    assert len(bench.history.since(0)) == LENGTH
    assert [sample.t for sample in bench.history.since(bench.t - 2)] == [bench.t - 1, bench.t]
    assert bench.history.since(bench.t) == []


def test_a_clock_that_is_set_back_adds_no_second_twice() -> None:
    bench = Bench()
    bench.second(10)
    bench.t -= 1
    bench.second(10)
    assert [sample.rate for sample in bench.history.since(0)] == [10.0]
    bench.t += 1
    bench.second(10)
    assert [sample.rate for sample in bench.history.since(0)] == [10.0, 10.0]


def test_confidence_is_the_mean_of_a_seconds_answers() -> None:
    bench = Bench()
    bench.version.sureness = Sureness(4, 2.0, 1)
    bench.second()
    bench.second()
    bench.version.sureness = Sureness(6, 3.8, 1)
    bench.second()
    bench.version.sureness = Sureness(2, 1.0, 2)  # loaded anew
    bench.second()
    told = [sample.confidence for sample in bench.history.since(0)]
    assert told == [
        {"churn@2": Rated(4, 0.5, 1)},
        {},
        {"churn@2": Rated(2, 0.9, 0)},
        {"churn@2": Rated(2, 0.5, 2)},
    ]
