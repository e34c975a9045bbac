"""What an event waits when the worker that owns its partition is killed, with and without a copy elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final
from urllib.request import urlopen

import msgspec
import numpy as np

from benchmarks import sides
from benchmarks.lab import Lab, Run
from benchmarks.latency import Answered
from benchmarks.load import Load, Publisher
from benchmarks.open_loop import due_ns, generator
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.scoring import DRAIN_S, START_S
from benchmarks.worker import Worker, WorkerFailedError
from core.topics import OBSERVATIONS, PREDICTIONS

KEYS: Final = 500_000
RATE: Final = 500
SECONDS: Final = 40.0
KILL_S: Final = 8.0
FRESH_S: Final = 3.0
"""A copy that is no further behind has caught up."""
SESSION_TIMEOUT_S: Final = 6.0
LATE_S: Final = 60.0


@benchmark
def failover(lab: Lab) -> Iterator[Result]:
    """The longest wait of an event when one of two workers is killed, 500,000 keys: without copies, with one."""
    for standbys, beyond in ((0, 4), (1, 1)):
        with lab.run("failover") as run, ExitStack() as stack:
            sides.deploy(lab, run)
            victim, heir = (_worker(lab, run, name, standbys) for name in ("a", "b"))
            stack.enter_context(victim)
            with Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader:
                Publisher(lab.bootstrap).publish(run.topic(OBSERVATIONS.name), Load().new_sessions(0, KEYS))
                victim.wait_until(lambda: reader.read(0.05) >= KEYS, DRAIN_S, "prediction of each session")
            stack.enter_context(heir)
            settled = partial(_settled, heir, lab.partitions // 2, standbys)
            heir.wait_until(settled, START_S, "half of the partitions")
            wait = _longest_wait(lab, run, victim)
        yield Result(
            f"failover: {'with a copy' if standbys else 'without copies'}",
            wait - SESSION_TIMEOUT_S,
            "s beyond the session timeout, longest wait of an event",
            lab.conditions(keys=KEYS, rate=RATE, session_timeout_s=SESSION_TIMEOUT_S, standbys=standbys),
            goal=f"<= {beyond}",
        )


def _worker(lab: Lab, run: Run, name: str, standbys: int) -> Worker:
    return sides.ours(
        lab,
        run,
        commit_interval=0.05,
        DATA_DIR=str(run.folder / "data" / name),
        SESSION_TIMEOUT=str(SESSION_TIMEOUT_S),
        STANDBYS=str(standbys),
    )


def _settled(worker: Worker, share: int, standbys: int) -> bool:
    """Whether it has its share of the partitions, and current copies of the others if there are to be any."""
    try:
        with urlopen(f"{worker.url}/tables", timeout=5) as answer:
            partitions = msgspec.json.decode(answer.read())["partitions"]
    except OSError:
        return False
    ages = list(partitions["copies"].values())
    fresh = [age for age in ages if age is not None and age < FRESH_S]
    return len(partitions["open"]) == share and len(fresh) == (share if standbys else 0)


def _longest_wait(lab: Lab, run: Run, victim: Worker) -> float:
    """Seconds; the victim is killed while events flow."""
    answered = msgspec.json.Decoder(Answered).decode
    waits: list[float] = []
    with Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader:
        while reader.take(1.0)[1]:
            pass
        already, alive = reader.count, True
        with generator(lab.bootstrap, run.topic(OBSERVATIONS.name), Load().sessions, RATE, SECONDS):
            began = time.monotonic()
            while reader.count - already < RATE * SECONDS:
                now, values = reader.take(0.1)
                waits += [(now - due_ns(answered(raw).event_id)) / 1e9 for raw in values]
                if alive and time.monotonic() - began > KILL_S:
                    victim.kill()
                    alive = False
                if time.monotonic() - began > SECONDS + LATE_S:
                    raise WorkerFailedError(f"{reader.count - already} of {RATE * SECONDS:.0f} events arrived in time")
    return float(np.max(waits))
