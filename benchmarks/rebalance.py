"""What an event waits while workers come and go, under an open loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks import sides
from benchmarks.lab import Lab, Run
from benchmarks.latency import Answered
from benchmarks.load import Load, Publisher
from benchmarks.open_loop import due_ns, generator
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.scoring import START_S
from benchmarks.worker import Worker, WorkerFailedError
from core.topics import OBSERVATIONS, PREDICTIONS

RATE: Final = 1_000
COMMIT_S: Final = 0.05
SESSION_TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 6.0
"""Between two changes, and before the first."""
LATE_S: Final = 60.0
BEFORE_NS: Final = 10**9
"""Events that are due shortly before a change may wait for it: they count as its own."""


@benchmark
def rebalance(lab: Lab) -> Iterator[Result]:
    """The longest wait of an event while workers join, and three are restarted one by one, in s: with a WORKER_ID, so
    that nothing moves, and without one, so that the others work on meanwhile."""
    for named in (True, False):
        yield from _coming_and_going(lab, named)


def _coming_and_going(lab: Lab, named: bool) -> Iterator[Result]:
    with lab.run("rebalance") as run, ExitStack() as stack:
        sides.deploy(lab, run)
        workers = [_worker(lab, run, name, named) for name in ("a", "b", "c")]
        stack.enter_context(workers[0])
        _warm(lab, run, workers[0])
        steps: list[tuple[str, Callable[[], object]]] = [("a worker joins", lambda: stack.enter_context(workers[1]))]
        steps.append(("another joins", lambda: stack.enter_context(workers[2])))
        for worker, name in zip(workers, "abc", strict=True):
            steps.append((f"restart of {name}", partial(_restart, worker)))
        waits = _waits(lab, run, steps)
        conditions = lab.conditions(
            rate=RATE, commit_interval_s=COMMIT_S, session_timeout_s=SESSION_TIMEOUT_S, worker_id=named
        )
        for what, wait in waits.items():
            yield Result(
                f"rebalance{'' if named else ' without names'}: {what}",
                wait,
                "s, longest wait of an event",
                conditions,
                goal="<= 3",
            )


def _worker(lab: Lab, run: Run, name: str, named: bool) -> Worker:
    settings: dict[str, Any] = {
        "commit_interval": COMMIT_S,
        "DATA_DIR": str(run.folder / "data" / name),
        "SESSION_TIMEOUT": str(SESSION_TIMEOUT_S),
    }
    return sides.ours(lab, run, **settings | ({"WORKER_ID": name} if named else {}))


def _warm(lab: Lab, run: Run, worker: Worker) -> None:
    warm = Publisher(lab.bootstrap).publish(run.topic(OBSERVATIONS.name), Load().once_each())
    with Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader:
        worker.wait_until(lambda: reader.read() >= warm, START_S, "prediction of each warm-up event")
    worker.wait_until_calm()


def _restart(worker: Worker) -> None:
    worker.stop()
    worker.__enter__()


def _waits(lab: Lab, run: Run, steps: list[tuple[str, Callable[[], object]]]) -> dict[str, float]:
    """For each step the longest wait, in s, among the events that were due from it until the next one."""
    began: dict[str, int] = {}

    def act() -> None:
        for what, step in steps:
            time.sleep(SETTLE_S)
            began[what] = time.monotonic_ns()
            step()
            time.sleep(SETTLE_S)

    answered = msgspec.json.Decoder(Answered).decode
    seconds = (2 * len(steps) + 1) * SETTLE_S
    waits: list[tuple[int, float]] = []
    with Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader:
        while reader.take(1.0)[1]:
            pass  # the warm-up's
        already = reader.count
        with generator(lab.bootstrap, run.topic(OBSERVATIONS.name), Load().sessions, RATE, seconds):
            actor = threading.Thread(target=act)
            actor.start()
            end = time.monotonic() + seconds + LATE_S
            while reader.count - already < RATE * seconds:
                now, values = reader.take(0.1)
                waits += [(due, (now - due) / 1e9) for due in (due_ns(answered(raw).event_id) for raw in values)]
                if time.monotonic() > end:
                    raise WorkerFailedError(f"{reader.count - already} of {RATE * seconds:.0f} events arrived in time")
            actor.join()
    due, wait = np.array(waits).T
    starts = [began[what] for what, _ in steps]
    return {
        what: float(wait[(due >= start - BEFORE_NS) & (due < following - BEFORE_NS)].max())
        for (what, _), start, following in zip(steps, starts, [*starts[1:], np.inf], strict=True)
    }
