"""What asking for values costs: those who ask, and the events that are scored meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Final

import msgspec
import numpy as np

from benchmarks.http_load import Getter
from benchmarks.lab import Lab, Run
from benchmarks.latency import COMMIT_S, LEAD_S, NOTHING, SECONDS, Answered, measure, start, warm_broker
from benchmarks.load import Load
from benchmarks.registry import Result, benchmark
from core.settings import Guarantee
from core.topics import PREDICTIONS

EVENTS: Final = 5_000
GETS: Final = 2_000
ROUNDS: Final = 3
SHOWN: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@benchmark
def views(lab: Lab) -> Iterator[Result]:
    """2,000 GETs of single values a second on a worker that scores 5,000 events/s: what they wait, and what the events
    wait for them, in ms; rounds with and without GETs alternate on the same worker."""
    warm_broker(lab)
    with lab.run("views") as run, ExitStack() as stack:
        url = start(lab, run, Guarantee.EXACTLY_ONCE, stack).url
        alone, beside, waited = [], [], []
        for _ in range(ROUNDS):
            alone.append(_scored(lab, run))
            gets = Getter(url, "/tables/sessions/s%d", Load().sessions, GETS, SECONDS + LEAD_S)
            beside.append(_scored(lab, run, gets))
            waited.append(gets.taken_ms)
    gets_ms = np.concatenate(waited)
    conditions = lab.conditions(
        events_per_s=EVENTS, gets_per_s=GETS, rounds=ROUNDS, sessions=Load().sessions, commit_interval_s=COMMIT_S
    )
    yield Result(
        f"views: GET at {GETS:,}/s beside {EVENTS:,} events/s",
        float(np.percentile(gets_ms, 99)),
        "ms, p99",
        conditions,
        _shown(gets_ms),
        "<= 50",
    )
    without, among = np.concatenate(alone), np.concatenate(beside)
    yield Result(
        f"views: scoring beside {GETS:,} GETs/s",
        float(np.percentile(among, 99) / np.percentile(without, 99)),
        "times the p99 without them",
        conditions,
        {f"{name} without": value for name, value in _shown(without).items()}
        | {f"{name} with": value for name, value in _shown(among).items()},
        "<= 1.5",
    )


def _scored(lab: Lab, run: Run, beside: AbstractContextManager[object] = NOTHING) -> np.ndarray:
    answered = msgspec.json.Decoder(Answered).decode
    taken, _ = measure(lab, run, PREDICTIONS.name, EVENTS, lambda raw: answered(raw).event_id, beside)
    return taken


def _shown(taken: np.ndarray) -> dict[str, float]:
    return {name: float(np.percentile(taken, p)) for name, p in SHOWN.items()}
