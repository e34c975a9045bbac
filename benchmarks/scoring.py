"""A ratio to a named rival in the same run, sides alternating; the parts add up to the whole."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import sides
from benchmarks.lab import Lab, Run
from benchmarks.load import Load, Publisher
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.sides import DEFAULTS, OURS, TUNED, Side
from benchmarks.worker import Worker, WorkerFailedError
from core.topics import OBSERVATIONS, PREDICTIONS

ROUNDS: Final = 3
START_S: Final = 120.0
DRAIN_S: Final = 300.0
SAME: Final = 1e-5
"""Largest difference between two sides' scores of one event."""
UNIT: Final = "us of worker CPU per event"
GOALS: Final = {DEFAULTS.name: 50.0, TUNED.name: 35.0}
"""Times as much CPU as ours that the rival needs at least."""
PARTS: Final[tuple[str, ...]] = ("consume", "decode", "fold", "model", "encode", "produce", "commit", "detect")


@dataclass(frozen=True, slots=True)
class Drained:
    """What one worker did with its load."""

    us: float
    """CPU microseconds an event."""
    per_s: float
    """Events a second of wall time."""
    scores: dict[str, dict[str, float]]
    steal_percent: float | None


@benchmark
def scoring(lab: Lab) -> Iterator[Result]:
    """8 features + 8 session means into an MLP 16-64-64-2; 10,000 sessions, 8 partitions, full records and headers."""
    load = Load()
    rivals = (DEFAULTS, TUNED)
    measured: dict[str, list[Drained]] = {side.name: [] for side in (*rivals, OURS)}
    for round_ in range(ROUNDS):
        for side in (*rivals, OURS):
            with lab.run("scoring") as run:
                measured[side.name].append(drain(lab, run, side.start(lab, run), load, side.events, round_))
        for rival in rivals:
            _same(rival.name, measured[rival.name][-1], measured[OURS.name][-1])
    for side in (*rivals, OURS):
        yield _figure(lab, load, side, measured[side.name])
    for rival in rivals:
        ratios = [a.us / b.us for a, b in zip(measured[rival.name], measured[OURS.name], strict=True)]
        yield Result(
            f"scoring: {rival.name} / {OURS.name}",
            statistics.median(ratios),
            "times the CPU",
            {"min": round(min(ratios), 1), "max": round(max(ratios), 1), "rounds": ROUNDS},
            goal=f">= {GOALS[rival.name]:.0f}",
        )
    yield from profile(lab, load)


def profile(lab: Lab, load: Load) -> Iterator[Result]:
    """Where ours goes, from a round of its own: the worker samples itself."""
    with lab.run("profile") as run:
        out = run.folder / "profile.json"
        sides.deploy(lab, run)
        worker = sides.ours(lab, run, PROFILE=str(out))
        drained = drain(lab, run, worker, load, OURS.events, ROUNDS)
        seconds = _profiled(out, worker)
    whole = sum(seconds.values())
    parts = {name: drained.us * seconds.get(name, 0.0) / whole for name in (*PARTS, *seconds)}
    yield Result(
        f"scoring: parts of {OURS.name}",
        drained.us,
        UNIT,
        lab.conditions(**OURS.settings, events=OURS.events, note="parts are sampled"),
        parts,
    )


def drain(lab: Lab, run: Run, worker: Worker, load: Load, events: int, round_: int) -> Drained:
    """Gives a warm, idle worker a full topic, and measures from there until a reader has seen every prediction.

    The worker's clock is held while the topic fills, so its CPU is that of exactly these events: nothing of the
    start, nothing before the first or after the last one.
    """
    records = load.events(events, round_)
    publisher = Publisher(lab.bootstrap)
    source, sink = run.topic(OBSERVATIONS.name), run.topic(PREDICTIONS.name)
    with Reader(lab.bootstrap, sink, lab.partitions, keep=True) as reader, worker:
        warm = publisher.publish(source, load.once_each())
        worker.wait_until(lambda: reader.read() >= warm, START_S, "prediction of each warm-up event")
        worker.wait_until_calm()
        worker.hold()
        publisher.publish(source, records)
        lab.steal.since_last()
        cpu, began = worker.cpu_s(), time.monotonic()
        worker.go()
        worker.wait_until(lambda: reader.read(0.05) >= warm + events, DRAIN_S, "prediction of each event")
        spent, took, steal = worker.cpu_s() - cpu, time.monotonic() - began, lab.steal.since_last()
        scores = reader.scores()
    if len(scores) != warm + events:
        raise WorkerFailedError(f"{warm + events} events led to predictions of {len(scores)}:\n{worker.tail()}")
    return Drained(spent / events * 1e6, events / took, scores, steal)


def _same(name: str, a: Drained, b: Drained) -> None:
    """Both sides did the same job, or their ratio means nothing."""
    for event, scores in a.scores.items():
        theirs, mine = list(scores.values()), list(b.scores[event].values())
        if any(abs(x - y) > SAME for x, y in zip(theirs, mine, strict=True)):
            raise WorkerFailedError(f"{name} scores {event} {scores}, {OURS.name} {b.scores[event]}")


def _figure(lab: Lab, load: Load, side: Side, drained: Sequence[Drained]) -> Result:
    us = [d.us for d in drained]
    conditions = lab.conditions(
        **side.settings,
        rounds=len(us),
        events=side.events,
        sessions=load.sessions,
        min=round(min(us), 2),
        max=round(max(us), 2),
        steal_percent_of_rounds=[d.steal_percent for d in drained],
        events_per_s_wall=round(statistics.median(d.per_s for d in drained)),
    )
    goal = "<= 13" if side is OURS else None
    return Result(f"scoring: {side.name}", statistics.median(us), UNIT, conditions, goal=goal)


def _profiled(path: Path, worker: Worker) -> dict[str, float]:
    """The seconds by part that the worker wrote when it ended, of the events alone: from where its clock was let go to
    where it was stopped."""
    if not path.exists():
        raise WorkerFailedError(f"the worker wrote no profile:\n{worker.tail()}")
    _start, events, *_end = json.loads(path.read_text())["laps"]
    seconds: dict[str, float] = events["seconds"]
    return seconds
