"""End to end under an open loop, beside the floor: generator, broker and reader with no worker between them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from benchmarks import sides
from benchmarks.lab import Lab, Run
from benchmarks.load import Load, Publisher
from benchmarks.open_loop import END_S, due_ns, generator
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.scoring import START_S
from benchmarks.worker import Worker, WorkerFailedError
from core.settings import Guarantee
from core.topics import OBSERVATIONS, PREDICTIONS

RATES: Final = (2_000, 10_000)
ROUNDS: Final = 3
SECONDS: Final = 20.0
LEAD_S: Final = 3.0
"""Of a run's beginning that is left out: processes start, queues settle."""
WARM_S: Final = 60.0
LATE_S: Final = 30.0
COMMIT_S: Final = 0.05
FLOOR: Final = "floor without a worker"
NOTHING: Final = nullcontext()
SHOWN: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "p99.99": 99.99, "max": 100.0}
GOALS: Final = {
    (Guarantee.AT_LEAST_ONCE.value, 10_000): "p99 <= 75",
    (Guarantee.EXACTLY_ONCE.value, 10_000): "p99 <= 130",
}


Arrived = list[tuple[int, list[bytes]]]
"""What a reader took, and when: monotonic, in ns."""


class Sent(msgspec.Struct):
    """An observation, as far as the floor is concerned."""

    id: str


class Answered(msgspec.Struct):
    """A prediction, as far as its latency is concerned."""

    event_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round of one side took."""

    ms: np.ndarray
    """(events,) float64: each event's latency."""
    late_ms: float
    steal_percent: float | None


@benchmark
def latency(lab: Lab) -> Iterator[Result]:
    """From the moment an event was due to be sent until a read_committed reader has its prediction, in ms."""
    warm_broker(lab)
    for rate in RATES:
        rounds: dict[str, list[Taken]] = {}
        for _ in range(ROUNDS):
            rounds.setdefault(FLOOR, []).append(_floor(lab, rate))
            for guarantee in Guarantee:
                rounds.setdefault(guarantee.value, []).append(_worker(lab, rate, guarantee))
        for side, taken in rounds.items():
            yield _figure(lab, side, taken, rate)


def _floor(lab: Lab, rate: int) -> Taken:
    sent = msgspec.json.Decoder(Sent).decode
    with lab.run("floor") as run:
        lab.steal.since_last()
        return Taken(*measure(lab, run, OBSERVATIONS.name, rate, lambda raw: sent(raw).id), lab.steal.since_last())


def _worker(lab: Lab, rate: int, guarantee: Guarantee) -> Taken:
    answered = msgspec.json.Decoder(Answered).decode
    with lab.run("latency") as run, ExitStack() as stack:
        start(lab, run, guarantee, stack)
        lab.steal.since_last()
        taken = measure(lab, run, PREDICTIONS.name, rate, lambda raw: answered(raw).event_id)
        return Taken(*taken, lab.steal.since_last())


def warm_broker(lab: Lab) -> None:
    """A broker's JVM compiles for a minute of this load, and takes most of a core for it: not what is measured."""
    with lab.run("warm") as run, ExitStack() as stack:
        start(lab, run, Guarantee.EXACTLY_ONCE, stack)
        with generator(lab.bootstrap, run.topic(OBSERVATIONS.name), Load().sessions, max(RATES), WARM_S) as sending:
            sending.lateness_ms(WARM_S + END_S)


def start(lab: Lab, run: Run, guarantee: Guarantee, stack: ExitStack, **environment: str) -> Worker:
    """A warm worker, which has seen each session once and stops with the stack. environment: more HOMUNCULUS_*."""
    sides.deploy(lab, run)
    worker = stack.enter_context(sides.ours(lab, run, guarantee=guarantee, commit_interval=COMMIT_S, **environment))
    warm = Publisher(lab.bootstrap).publish(run.topic(OBSERVATIONS.name), Load().once_each())
    with Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader:
        worker.wait_until(lambda: reader.read() >= warm, START_S, "prediction of each warm-up event")
    worker.wait_until_calm()
    return worker


def measure(
    lab: Lab,
    run: Run,
    topic: str,
    rate: int,
    identifier: Callable[[bytes], str],
    beside: AbstractContextManager[object] = NOTHING,
) -> tuple[np.ndarray, float]:
    """Latencies in ms of all events but the first seconds', and the generator's own lateness. beside: what begins and
    ends with the load."""
    arrived, late = gather(lab, run, topic, rate, beside)
    return latencies_ms(arrived, identifier, rate), late


def gather(
    lab: Lab, run: Run, topic: str, rate: int, beside: AbstractContextManager[object] = NOTHING
) -> tuple[Arrived, float]:
    """What arrived on a topic of a load, all of it, and the generator's own lateness in ms."""
    total = int(rate * (SECONDS + LEAD_S))
    sessions = Load().sessions
    source = run.topic(OBSERVATIONS.name)
    arrived: Arrived = []
    with Reader(lab.bootstrap, run.topic(topic), lab.partitions, keep=False) as reader:
        while reader.take(1.0)[1]:
            pass  # the warm-up's
        already = reader.count
        with beside, generator(lab.bootstrap, source, sessions, rate, SECONDS + LEAD_S) as sending:
            end = time.monotonic() + SECONDS + LEAD_S + LATE_S
            while reader.count - already < total:
                arrived.append(reader.take(0.1))
                if time.monotonic() > end:
                    raise WorkerFailedError(f"{reader.count - already} of {total} events arrived in time on {topic}")
            late = sending.lateness_ms()
    return arrived, late


def latencies_ms(arrived: Arrived, identifier: Callable[[bytes], str], rate: int) -> np.ndarray:
    """(events,): from when each was due, but for those of the first seconds."""
    taken = [(due_ns(name), now - due_ns(name)) for now, values in arrived for name in map(identifier, values)]
    taken.sort()
    return np.array([t for _, t in taken[int(rate * LEAD_S) :]]) / 1e6


def _figure(lab: Lab, side: str, rounds: list[Taken], rate: int) -> Result:
    """The round in the middle, by its 99th percentile, and those of all rounds."""
    p99 = [float(np.percentile(taken.ms, 99)) for taken in rounds]
    middle = rounds[p99.index(statistics.median_low(p99))]
    parts = {name: float(np.percentile(middle.ms, p)) for name, p in SHOWN.items()}
    conditions = lab.conditions(
        events=len(middle.ms),
        sessions=Load().sessions,
        commit_interval_s=COMMIT_S,
        p99_of_rounds=[round(value, 1) for value in p99],
        steal_percent_of_rounds=[taken.steal_percent for taken in rounds],
        generator_late_p99_ms=[round(taken.late_ms, 2) for taken in rounds],
    )
    return Result(
        f"latency: {side} at {rate:,} events/s", parts["p99"], "ms, p99", conditions, parts, GOALS.get((side, rate))
    )
