"""What a change of the model costs the events that are scored meanwhile, and how long it takes."""

from __future__ import annotations

import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from benchmarks import model, sides
from benchmarks.lab import Lab, Run
from benchmarks.latency import (
    COMMIT_S,
    LATE_S,
    LEAD_S,
    NOTHING,
    SECONDS,
    Arrived,
    gather,
    latencies_ms,
    start,
    warm_broker,
)
from benchmarks.load import Load, Publisher
from benchmarks.registry import Result, benchmark
from core.settings import Guarantee
from core.topics import CONTROL, PREDICTIONS

EVENTS: Final = 5_000
ROUNDS: Final = 3
EVERY_S: Final = 1.0
"""Between two requests."""
VERSIONS: Final = int(ROUNDS * (SECONDS + LEAD_S + LATE_S) / EVERY_S)
"""More than are asked for."""
JOINS_S: Final = 60.0
SHOWN: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


class Answered(msgspec.Struct):
    """A prediction, as far as swaps are concerned."""

    event_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and who was to answer from then on."""

    at_ns: int
    version: str
    back: bool
    """Whether it was a rollback."""


class Operator:
    """Asks for another version every second, inside a `with` block: for one that nobody has seen, then for the way
    back, in turns."""

    def __init__(self, lab: Lab, run: Run, new: Iterator[str]) -> None:
        self.asked: list[Asked] = []
        self._new = new
        self._topic = run.topic(CONTROL.name)
        self._publisher = Publisher(lab.bootstrap, linger_ms=0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="operator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        back = False
        while not self._over.wait(EVERY_S) or back:  # it ends where it began
            version = model.VERSION if back else next(self._new)
            request = {"action": "rollback"} if back else {"active": version}
            self.asked.append(Asked(time.monotonic_ns(), version, back))
            self._publisher.publish(self._topic, [(model.NAME.encode(), json.dumps(request).encode())])
            back = not back


@benchmark
def swaps(lab: Lab) -> Iterator[Result]:
    """Two workers that score 5,000 events/s while their model changes every second: what the events wait, in times of
    what they wait without, and what a new version and a way back take; rounds with and without changes alternate."""
    lab.build_model()
    versions = [str(number) for number in range(2, 2 + VERSIONS)]
    for version in versions:
        model.build(lab.store, version)
    warm_broker(lab)
    still: list[np.ndarray] = []
    among: list[np.ndarray] = []
    took: dict[bool, list[float]] = {False: [], True: []}
    steal: list[float | None] = []
    with lab.run("swaps") as run, ExitStack() as stack:
        start(lab, run, Guarantee.EXACTLY_ONCE, stack)
        second = stack.enter_context(sides.ours(lab, run, commit_interval=COMMIT_S))
        second.wait_until(lambda: _is_ready(second.url), JOINS_S, "readiness of the second worker")
        second.wait_until_calm()
        new = iter(versions)
        for _ in range(ROUNDS):
            lab.steal.since_last()
            still.append(latencies_ms(gather(lab, run, PREDICTIONS.name, EVENTS, NOTHING)[0], _event, EVENTS))
            steal.append(lab.steal.since_last())
            operator = Operator(lab, run, new)
            arrived, _ = gather(lab, run, PREDICTIONS.name, EVENTS, operator)
            among.append(latencies_ms(arrived, _event, EVENTS))
            steal.append(lab.steal.since_last())
            for back in took:
                took[back] += _waits_s([asked for asked in operator.asked if asked.back is back], arrived)
    p99s = {
        side: [float(np.percentile(ms, 99)) for ms in rounds] for side, rounds in (("without", still), ("with", among))
    }
    conditions = lab.conditions(
        workers=2,
        events_per_s=EVENTS,
        sessions=Load().sessions,
        commit_interval_s=COMMIT_S,
        seconds_between_requests=EVERY_S,
        lead_s=LEAD_S,
        p99_ms_of_rounds={side: [round(p99, 1) for p99 in of_rounds] for side, of_rounds in p99s.items()},
        steal_percent_of_rounds=steal,
    )
    without, during = np.concatenate(still), np.concatenate(among)
    yield Result(
        f"swaps: scoring {EVENTS:,} events/s while the model changes every second",
        statistics.median(p99s["with"]) / statistics.median(p99s["without"]),
        "times the p99 without, rounds in the middle",
        conditions,
        _shown("without", without) | _shown("with", during),
        "<= 1.5",
    )
    for back, waits in took.items():
        yield Result(
            f"swaps: {'a rollback' if back else 'a new version'}, from the request to its first answer",
            float(np.median(waits)),
            "s, median",
            conditions | {"requests": len(waits)},
            {"p50": float(np.median(waits)), "max": max(waits)},
            "max < 1" if back else None,
        )


def _waits_s(asked: Sequence[Asked], arrived: Arrived) -> list[float]:
    """How long each version that was asked for did not answer, as a reader saw it. A version answers again after a
    rollback: the answers from before the request aren't its."""
    version = msgspec.json.Decoder(Answered).decode
    seen = [(now, {version(raw).version for raw in values}) for now, values in arrived]
    waits = []
    for one in asked:
        first = next((now for now, versions in seen if now > one.at_ns and one.version in versions), None)
        if first is not None:
            waits.append((first - one.at_ns) / 1e9)
    return waits


def _shown(side: str, ms: np.ndarray) -> dict[str, float]:
    return {f"{name} {side}": float(np.percentile(ms, p)) for name, p in SHOWN.items()}


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _event(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=Answered).event_id
