"""How often the confidence detectors cry wolf, how soon they find a drop, and what a record costs them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats

from benchmarks.drift_tables import tables
from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.spec import Spec

SEED: Final = 20261130
RECORDS: Final = 10_000_000
"""Stationary ones, of each shape."""
LIFE: Final = 100_000
"""Of one version: each has a reference of its own."""
BATCH: Final = 8192
APART_MS: Final = 100
"""Event time between two records."""
TRIALS: Final = 200
BEFORE: Final = (3000, 5000)
"""Records before a change: any number between."""
AFTER: Final = 6000
STEP: Final = 2000
"""Records of a level that comes and goes."""
KINDS: Final = (
    "drift",
    "drift_suspected",
    "drift_warning",
    "low_confidence_share",
    "low_confidence_mean",
    "label_drift",
)
ROUNDS: Final = 9
COSTED: Final = 60_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """Confidences: Beta distributed, and AR(1) in their normal scores."""

    name: str
    mean: float
    spread: float
    """The two parameters of Beta together: the larger, the tighter."""
    again: float = 0.0
    """Of neighbours' normal scores: their correlation."""

    def draw(self, rng: np.random.Generator, means: Floats) -> NDArray[np.float32]:
        """Confidences with a mean each."""
        scores = rng.standard_normal(len(means))
        if self.again:
            scores[1:] *= (1 - self.again**2) ** 0.5
            scores = signal.lfilter([1.0], [1.0, -self.again], scores)
        ranks, drawn = stats.norm.cdf(scores), np.empty(len(means))
        for mean in np.unique(means):
            there = means == mean
            drawn[there] = np.interp(ranks[there], _RANKS, self._quantiles(float(mean)))
        return drawn.astype(np.float32)

    def _quantiles(self, mean: float) -> Floats:
        if (self.spread, mean) not in _QUANTILES:
            _QUANTILES[self.spread, mean] = stats.beta.ppf(_RANKS, mean * self.spread, (1 - mean) * self.spread)
        return _QUANTILES[self.spread, mean]


_RANKS: Final = stats.norm.cdf(np.linspace(-6, 6, 4001))
_QUANTILES: Final[dict[tuple[float, float], Floats]] = {}

SHAPES: Final = (
    Shape("tight", 0.8, 100.0),
    Shape("wide", 0.75, 4.0),
    Shape("tight, AR .9", 0.8, 100.0, 0.9),
    Shape("wide, AR .9", 0.75, 4.0, 0.9),
)


@benchmark
def drift(lab: Lab) -> Iterator[Result]:
    """False alarms of the confidence detectors in 40 million records, their delays, and their cost; needs no broker."""
    yield from _cost()
    alarms, delays = [], []
    for shape in SHAPES:
        yield (found := _false_alarms(shape))
        alarms.append(found)
    for shape in SHAPES:
        for found in _delays(shape):
            yield found
            delays.append(found)
    print(tables(alarms, delays), file=sys.stderr)


def _delays(shape: Shape) -> Iterator[Result]:
    for change in (-0.05, -0.10, -0.20):
        yield _delay(shape, f"a drop of {-100 * change:.0f} points", _step(shape, change))
    yield _delay(shape, "10 points in 5,000 records", _gradual(shape, -0.10))
    yield _delay(shape, "10 points for 2,000 records, three times", _recurring(shape, -0.10))
    yield _delay(shape, "a rise of 10 points", _step(shape, 0.10))


def _cost() -> Iterator[Result]:
    rng = np.random.default_rng(SEED)
    shape = SHAPES[1]
    values = shape.draw(rng, np.full(COSTED, shape.mean))
    for size in (200, 1000):
        parts = list(_parts(values, _labels(rng, len(values), shape.again), size))
        spent = []
        for _ in range(ROUNDS):
            monitor = _monitor()
            began = time.process_time()
            for part in parts:
                monitor.fold(part)
            spent.append((time.process_time() - began) / COSTED * 1e6)
        yield Result(
            f"drift_cost_{size}",
            min(spent),
            "us of CPU a record, all confidence and label rules",
            {"batch": size, "records": COSTED, "rounds": ROUNDS, "shape": shape.name},
            goal="at most 1",
        )


def _false_alarms(shape: Shape) -> Result:
    rng = np.random.default_rng([SEED, SHAPES.index(shape)])
    told: Counter[str] = Counter()
    for _ in range(RECORDS // LIFE):
        monitor = _monitor()
        values = shape.draw(rng, np.full(LIFE, shape.mean))
        for part in _parts(values, _labels(rng, LIFE, shape.again), BATCH):
            told.update(one.kind for one in monitor.fold(part) if one.state == "opened" and not one.reminder)
    return Result(
        f"drift_false_alarms_{shape.name}",
        told["drift"],
        f"`drift` in {RECORDS:,} stationary records",
        {
            "seed": SEED,
            "lives": RECORDS // LIFE,
            "mean": shape.mean,
            "spread": shape.spread,
            "correlation": shape.again,
            "records_between_at_least": {kind: round(_between_at_least(told[kind])) for kind in KINDS},
        },
        {kind: float(told[kind]) for kind in KINDS},
        goal="none; at most 10",
    )


def _between_at_least(alarms: int) -> float:
    """Expected run time of a detector that gave so many false alarms: with 95 % confidence it isn't shorter."""
    return float(RECORDS / (stats.chi2.ppf(0.95, 2 * alarms + 2) / 2))


def _delay(shape: Shape, what: str, course: Floats) -> Result:
    """course: mean of each record after the change."""
    rng = np.random.default_rng([SEED, 100 + SHAPES.index(shape), *what.encode()])
    delays: dict[str, list[int]] = {kind: [] for kind in KINDS}
    early = 0
    for _ in range(TRIALS):
        before = int(rng.integers(*BEFORE))
        means = np.concatenate((np.full(before, shape.mean), course))
        values = shape.draw(rng, means)
        monitor, found = _monitor(), set[str]()
        for part in _parts(values, _labels(rng, len(values), shape.again), BATCH):
            for one in monitor.fold(part):
                number = int(one.source.rpartition("/")[2])
                if one.state == "opened" and not one.reminder and one.kind not in found:
                    if number < before:
                        early += 1
                        continue
                    found.add(one.kind)
                    delays[one.kind].append(number + 1 - before)
    goal = "median about 620, at most 1,000" if "drop of 10" in what and not shape.again else None
    return Result(
        f"drift_delay_{shape.name}: {what}",
        float(np.median(delays["drift"])) if delays["drift"] else None,
        "records until `drift` (median)",
        {
            "seed": SEED,
            "trials": TRIALS,
            "within": len(course),
            "before_the_change": early,
            **{
                kind: {
                    "found": len(of_kind) / TRIALS,
                    "median": float(np.median(of_kind)) if of_kind else None,
                    "p99": float(np.quantile(of_kind, 0.99)) if of_kind else None,
                    "longest": max(of_kind, default=None),
                }
                for kind, of_kind in delays.items()
                if kind != "label_drift"
            },
        },
        goal=goal,
    )


def _step(shape: Shape, change: float) -> Floats:
    return np.full(AFTER, round(shape.mean + change, 3))


def _gradual(shape: Shape, change: float) -> Floats:
    """In 50 steps over 5,000 records."""
    steps = np.repeat(np.linspace(0, change, 51)[1:], 100)
    return np.round(shape.mean + np.concatenate((steps, np.full(AFTER - 5000 + 3000, change))), 3)


def _recurring(shape: Shape, change: float) -> Floats:
    return np.round(shape.mean + np.tile(np.repeat([change, 0.0], STEP), 3), 3)


def _monitor() -> Monitor:
    return Monitor(Spec(name="sim", version="1", labels=("no", "yes")))


def _labels(rng: np.random.Generator, n: int, again: float) -> NDArray[np.uint16]:
    """Of two, the second in 30 % of cases; as dependent as the confidences."""
    scores = rng.standard_normal(n)
    if again:
        scores[1:] *= (1 - again**2) ** 0.5
        scores = signal.lfilter([1.0], [1.0, -again], scores)
    return np.asarray(scores < stats.norm.ppf(0.3), np.uint16)


def _parts(values: NDArray[np.float32], labels: NDArray[np.uint16], size: int) -> Iterator[Answers]:
    for start in range(0, len(values), size):
        some = values[start : start + size]
        offsets = np.arange(start, start + len(some))
        yield Answers(
            np.zeros(len(some), np.int32), offsets, offsets * APART_MS, labels[start : start + size], some, some, None
        )
