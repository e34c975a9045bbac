"""What asking for values costs: those who ask, and the events that are scored meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from benchmarks.http_load import Getter
from benchmarks.lab import Lab, Run
from benchmarks.latency import COMMIT_S, LEAD_S, NOTHING, SECONDS, Answered, measure, start, warm_broker
from benchmarks.load import Load
from benchmarks.registry import Result, benchmark
from benchmarks.worker import Worker
from core.settings import Guarantee
from core.topics import PREDICTIONS

EVENTS: Final = 5_000
GETS: Final = 2_000
ROUNDS: Final = 3
SHOWN: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass(frozen=True, slots=True)
class Round:
    """What one round took."""

    ms: np.ndarray
    """(events,) float64: each event's latency."""
    cpu_s: float
    """Of the worker."""
    steal_percent: float | None


@benchmark
def views(lab: Lab) -> Iterator[Result]:
    """2,000 GETs of single values a second on a worker that scores 5,000 events/s: what they wait, and what the events
    wait for them, in ms; rounds with and without GETs alternate on the same worker, and the one in the middle is the
    figure."""
    warm_broker(lab)
    with lab.run("views") as run, ExitStack() as stack:
        worker = start(lab, run, Guarantee.EXACTLY_ONCE, stack)
        alone, beside, waited = list[Round](), list[Round](), list[np.ndarray]()
        for _ in range(ROUNDS):
            alone.append(_scored(lab, run, worker))
            gets = Getter(worker.url, "/tables/sessions/s%d", Load().sessions, GETS, SECONDS + LEAD_S)
            beside.append(_scored(lab, run, worker, gets))
            waited.append(gets.taken_ms[int(GETS * LEAD_S) :])
    gets_ms = np.concatenate(waited)
    spent_s = sum(one.cpu_s for one in beside) - sum(one.cpu_s for one in alone)
    conditions = lab.conditions(
        events_per_s=EVENTS,
        gets_per_s=GETS,
        rounds=ROUNDS,
        sessions=Load().sessions,
        commit_interval_s=COMMIT_S,
        p99_of_rounds=[round(float(np.percentile(one, 99)), 1) for one in waited],
        steal_percent_without=[one.steal_percent for one in alone],
        steal_percent_with=[one.steal_percent for one in beside],
        worker_us_per_get=round(1e6 * spent_s / (ROUNDS * GETS * (SECONDS + LEAD_S))),
    )
    yield Result(
        f"views: GET at {GETS:,}/s beside {EVENTS:,} events/s",
        float(np.percentile(gets_ms, 99)),
        "ms, p99",
        conditions,
        _shown(gets_ms),
        "<= 50",
    )
    p99 = [tuple(float(np.percentile(one.ms, 99)) for one in pair) for pair in zip(alone, beside, strict=True)]
    times = [among / without for without, among in p99]
    middle = times.index(statistics.median_low(times))
    yield Result(
        f"views: scoring beside {GETS:,} GETs/s",
        times[middle],
        "times the p99 without them",
        conditions | {"times_of_rounds": [round(value, 2) for value in times]},
        {f"{name} without": value for name, value in _shown(alone[middle].ms).items()}
        | {f"{name} with": value for name, value in _shown(beside[middle].ms).items()},
        "<= 1.5",
    )


def _scored(lab: Lab, run: Run, worker: Worker, beside: AbstractContextManager[object] = NOTHING) -> Round:
    answered = msgspec.json.Decoder(Answered).decode
    lab.steal.since_last()
    before = worker.cpu_s()
    taken, _ = measure(lab, run, PREDICTIONS.name, EVENTS, lambda raw: answered(raw).event_id, beside)
    return Round(taken, worker.cpu_s() - before, lab.steal.since_last())


def _shown(taken: np.ndarray) -> dict[str, float]:
    return {name: float(np.percentile(taken, p)) for name, p in SHOWN.items()}
