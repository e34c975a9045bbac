"""How often input, performance and expectation detectors cry wolf, how soon they find a change, and what they cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import signal

from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from models.calibrating import isotonic, temperature
from models.calibration import Isotonic, Temperature
from models.describing import described
from models.drift.answers import Answers
from models.drift.expected import ExpectedPerformance
from models.drift.inputs import InputDrift
from models.drift.outcomes import Outcome
from models.drift.performance import PerformanceDrift
from models.manifest import Manifest
from models.reference import FeatureReference
from models.rows import numbers
from models.watched import Watched

SEED: Final = 20261130
RECORDS: Final = 2_000_000
"""Stationary ones, of each shape."""
LIFE: Final = 100_000
"""Of one version: each has a sample of its own."""
SAMPLE: Final = 10_000
"""Rows of it."""
BATCH: Final = 10_000
APART_MS: Final = 100
"""Event time between two records."""
TRIALS: Final = 40
BEFORE: Final = (2000, 3000)
"""Records before a change: any number between."""
AFTER: Final = 12_000
RUN: Final = 40
"""Records of a session, where values are those of sessions."""
ROUNDS: Final = 5

Floats = NDArray[np.float64]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stream:
    """Features: two thirds numbers, a third categories with five names and 2 % missing."""

    name: str
    features: int
    again: float = 0.0
    """Of neighbours' values: their correlation."""
    run: int = 1
    """Records in a row with the same values."""

    @property
    def numbers(self) -> int:
        """Columns of numbers, the first ones."""
        return self.features - self.features // 3

    def draw(self, rng: np.random.Generator, n: int) -> Matrix:
        """(n, features), as Answers have them."""
        rows = -(-n // self.run)
        scores = rng.standard_normal((rows, self.features))
        if self.again:
            scores[1:] *= (1 - self.again**2) ** 0.5
            scores = signal.lfilter([1.0], [1.0, -self.again], scores, axis=0)
        cuts = np.array([-0.25, 0.4, 1.0, 1.6])
        scores[:, self.numbers :] = np.searchsorted(cuts, scores[:, self.numbers :])
        scores[rng.random(scores.shape) < 0.02] = np.nan
        return np.repeat(scores, self.run, axis=0)[:n].astype(np.float32)

    def reference(self, rng: np.random.Generator) -> dict[str, FeatureReference]:
        """Of rows that are independent of each other."""
        rows = Stream("", self.features).draw(rng, SAMPLE)
        columns: dict[str, list[Any]] = {f"n{j}": rows[:, j].tolist() for j in range(self.numbers)}
        for j in range(self.numbers, self.features):
            columns[f"c{j}"] = [None if np.isnan(x) else f"{x:.0f}" for x in rows[:, j]]
        # By name, so that a category's place is the number that stands for it.
        return {name: _by_name(each) for name, each in described(columns).items()}


def _by_name(reference: FeatureReference) -> FeatureReference:
    if reference.type == "number":
        return reference
    return reference.model_copy(update={"shares": dict(sorted(reference.shares.items()))})


STREAMS: Final = (
    Stream("10 features", 10),
    Stream("30 features", 30),
    Stream("30 features, AR .9", 30, again=0.9),
    Stream("30 features, sessions of 40 records", 30, run=RUN),
)


@benchmark
def inputs(lab: Lab) -> Iterator[Result]:
    """False alarms and delays of input, performance and expectation detectors, and their cost; needs no broker."""
    yield from _costs()
    for stream in STREAMS:
        yield _input_alarms(stream)
    for stream in STREAMS[1:3]:
        for shift in (0.25, 0.5, 1.0):
            yield _input_delay(stream, f"a number's mean moves by {shift} deviations", _moved(shift))
        yield _input_delay(stream, "10 points of a category's share move", _points(stream.numbers, 0.10))
        yield _input_delay(stream, "10 points of a number are missing", _gone(0.10))
    yield _performance_alarms()
    for wrong in (0.04, 0.08, 0.16):
        yield _performance_delay(wrong)
    for again in (0.0, 0.9):
        yield _expected_alarms(again)
    for steep in (1.6, 1.2, 0.8):
        yield _expected_delay(steep)


def answers(features: Matrix | None, at: int, second: Floats | None = None) -> Answers:
    """Answers one after the other, from place `at` on; second: the second label's probabilities."""
    n = len(features) if features is not None else len(second) if second is not None else 0
    p = np.ones(n) if second is None else second
    places = np.arange(at, at + n)
    return Answers(
        partition=np.zeros(n, np.int32),
        offset=places,
        ts=places * APART_MS,
        best=(p > 0.5).astype(np.uint16),
        score=np.maximum(p, 1 - p).astype(np.float32),
        confidence=None,
        features=features,
    )


def _input_alarms(stream: Stream) -> Result:
    rng = np.random.default_rng(SEED)
    told = 0
    for _ in range(RECORDS // LIFE):
        drift = InputDrift("m@1", stream.reference(rng))
        rows = stream.draw(rng, LIFE)
        for at in range(0, LIFE, BATCH):
            told += sum(change.state == "opened" for change in drift.fold(answers(rows[at : at + BATCH], at)))
    conditions = {"stream": stream.name, "records": RECORDS, "life": LIFE, "sample": SAMPLE, "seed": SEED}
    return Result("input_false_alarms", told / RECORDS * 1e6, "per million records", conditions)


Change = Callable[[np.random.Generator, Matrix], None]


def _moved(shift: float) -> Change:
    def change(_: np.random.Generator, rows: Matrix) -> None:
        rows[:, 0] += np.float32(shift)

    return change


def _points(column: int, share: float) -> Change:
    def change(rng: np.random.Generator, rows: Matrix) -> None:
        # From the most frequent category to the rarest: of its 40 % a quarter.
        rows[(rows[:, column] == 0) & (rng.random(len(rows)) < share / 0.4), column] = 4

    return change


def _gone(share: float) -> Change:
    def change(rng: np.random.Generator, rows: Matrix) -> None:
        rows[rng.random(len(rows)) < share, 0] = np.nan

    return change


def _input_delay(stream: Stream, what: str, change: Change) -> Result:
    rng = np.random.default_rng(SEED + 1)
    found: list[int] = []
    for _ in range(TRIALS):
        drift, begin = InputDrift("m@1", stream.reference(rng)), int(rng.integers(*BEFORE))
        rows = stream.draw(rng, begin + AFTER)
        change(rng, rows[begin:])
        told = [one for one in drift.fold(answers(rows, 0)) if one.state == "opened"]
        found += [int(one.source.rpartition("/")[2]) - begin for one in told][:1]
    return _delays("input_delay", found, {"stream": stream.name, "change": what})


def _delays(name: str, found: list[int], conditions: dict[str, Any]) -> Result:
    late = sorted([*(max(one, 0) for one in found), *[AFTER * 9] * (TRIALS - len(found))])
    told = {"found": f"{len(found)} of {TRIALS}", "p90": late[int(0.9 * TRIALS) - 1], "seed": SEED + 1}
    return Result(name, statistics.median(late), "records until it is told (median)", conditions | told)


def _outcomes(rng: np.random.Generator, n: int, at: int, wrong: float = 0.0) -> Iterator[Outcome]:
    p = 1 / (1 + np.exp(-2 * rng.standard_normal(n)))
    truth = (rng.random(n) < p) ^ (rng.random(n) < wrong)
    for i, (q, t) in enumerate(zip(p.tolist(), truth.tolist(), strict=True), at):
        yield Outcome(i * APART_MS * 144, f"observations/0/{i}", int(t), (1 - q, q))


def _performance_alarms() -> Result:
    rng = np.random.default_rng(SEED)
    told, lives, life = 0, 25, 40_000
    for _ in range(lives):
        drift = PerformanceDrift("m@1", 2)
        told += sum(one.state == "opened" for one in drift.judge(_outcomes(rng, life, 0)))
    conditions = {"labels": lives * life, "life": life, "a_window": 250, "seed": SEED}
    return Result("performance_false_alarms", told / (lives * life) * 1e6, "per million labels", conditions)


def _performance_delay(wrong: float) -> Result:
    rng = np.random.default_rng(SEED + 1)
    found: list[int] = []
    for _ in range(TRIALS):
        drift, begin = PerformanceDrift("m@1", 2), 4000 + int(rng.integers(*BEFORE))
        told = drift.judge(_outcomes(rng, begin, 0)) + drift.judge(_outcomes(rng, AFTER, begin, wrong))
        found += [int(one.source.rpartition("/")[2]) - begin for one in told if one.state == "opened"][:1]
    return _delays("performance_delay", found, {"change": f"{wrong:.0%} of the labels turn, accuracy .77 before"})


def _sure(rng: np.random.Generator, n: int, steep: float, again: float = 0.0) -> Floats:
    scores = rng.standard_normal(n)
    if again:
        scores[1:] *= (1 - again**2) ** 0.5
        scores = signal.lfilter([1.0], [1.0, -again], scores)
    return np.asarray(1 / (1 + np.exp(-steep * scores)))


def _expected_alarms(again: float) -> Result:
    rng = np.random.default_rng(SEED)
    told, records = 0, 5 * RECORDS
    for _ in range(records // LIFE):
        drift = ExpectedPerformance("m@1", 2)
        told += sum(one.state == "opened" for one in drift.fold(answers(None, 0, _sure(rng, LIFE, 2.0, again))))
    conditions = {"records": records, "life": LIFE, "again": again, "seed": SEED}
    return Result("expected_false_alarms", told / records * 1e6, "per million records", conditions)


def _expected_delay(steep: float) -> Result:
    rng = np.random.default_rng(SEED + 1)
    found: list[int] = []
    for _ in range(TRIALS):
        drift, begin = ExpectedPerformance("m@1", 2), int(rng.integers(*BEFORE))
        p = np.concatenate((_sure(rng, begin, 2.0), _sure(rng, AFTER, steep)))
        told = [one for one in drift.fold(answers(None, 0, p)) if one.state == "opened"]
        found += [int(one.source.rpartition("/")[2]) - begin for one in told][:1]
    many = np.random.default_rng(0)
    before, after = (float(np.maximum(p, 1 - p).mean()) for p in (_sure(many, 10**6, 2.0), _sure(many, 10**6, steep)))
    return _delays("expected_delay", found, {"change": f"accuracy to be expected {before:.3f} -> {after:.3f}"})


def _costs() -> Iterator[Result]:
    rng, n = np.random.default_rng(SEED), 50_000
    for stream in (STREAMS[1], Stream("30 numbers", 30)):
        reference = stream.reference(rng)
        if stream.name == "30 numbers":
            reference = {f"n{j}": reference["n0"] for j in range(30)}
        rows = Stream("", 30).draw(rng, n)
        fold = partial(_folded, reference, rows)
        conditions = {"stream": stream.name, "state": len(msgspec.msgpack.encode(fold().state))}
        yield Result("input_cost", _least(fold) / n, "us of CPU a record", conditions)
    yield from _reading(n)
    given = list(_outcomes(rng, n, 0))
    spent = _least(lambda: PerformanceDrift("m@1", 2).judge(given))
    yield Result("performance_cost", spent / n, "us of CPU a label", {"labels": 2})
    p = answers(None, 0, _sure(rng, n, 2.0))
    yield Result("expected_cost", _least(lambda: ExpectedPerformance("m@1", 2).fold(p)) / n, "us of CPU a record", {})
    second = _sure(rng, n, 2.0)
    pairs = np.stack((1 - second, second), axis=1).astype(np.float32)
    truth = rng.random(n) < second
    many = rng.dirichlet(np.ones(10), n).astype(np.float32)
    for name, fitted, given_p in (
        ("isotonic", isotonic(pairs, truth), pairs),
        ("temperature, 2 labels", temperature(pairs, truth), pairs),
        ("temperature, 10 labels", temperature(pairs, truth), many),
    ):
        for size in (1, 100, 1000):
            part = given_p[:size]
            spent = _least(partial(_repeated, fitted, part))
            yield Result("calibration_cost", spent / 500 / size, "us of CPU a record", {"how": name, "batch": size})


def _folded(reference: dict[str, FeatureReference], rows: Matrix) -> InputDrift:
    drift = InputDrift("m@1", reference)
    for at in range(0, len(rows), 1000):
        drift.fold(answers(rows[at : at + 1000], at))
    return drift


def _repeated(fitted: Temperature | Isotonic, p: Matrix) -> None:
    for _ in range(500):
        fitted.applied(p)


def _read(watched: Watched, events: list[dict[str, Any]], found: Floats, size: int) -> None:
    nothing = np.empty((len(events), 0))
    for at in range(0, len(events), size):
        watched.of(events[at : at + size], found[at : at + size], nothing[at : at + size])


def _reading(n: int) -> Iterator[Result]:
    rng = np.random.default_rng(SEED)
    stream = Stream("", 30)
    features = stream.reference(rng)
    inputs_ = {"X": {"fields": [name for name, each in features.items() if each.type == "number"]}}
    said = {"name": "m", "version": "1", "labels": ["a", "b"], "outputs": {"probabilities": "p"}, "inputs": inputs_}
    made = Manifest.model_validate(said | {"files": {"model.onnx": "0" * 64}, "features": features})
    rows = stream.draw(rng, n).tolist()
    events = [
        {name: f"{x:.0f}" if name[0] == "c" else x for name, x in zip(features, row, strict=True)} for row in rows
    ]
    fields = made.raw_fields
    found = numbers(events, fields)
    watched = Watched(made, fields, ())
    for size in (100, 1000):
        spent = _least(partial(_read, watched, events, found, size))
        yield Result("watched_cost", spent / n, "us of CPU a record", {"batch": size, "numbers": 20, "categories": 10})


def _least(work: Callable[[], object]) -> float:
    """us of CPU, the least of some rounds."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent) * 1e6
