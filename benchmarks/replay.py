"""What a worker with an empty data folder waits for: its tables, read back from their changelogs."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Iterator
from typing import Final

from benchmarks import sides
from benchmarks.lab import Lab, Run
from benchmarks.load import Load, Publisher
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.scoring import DRAIN_S, START_S
from benchmarks.worker import Worker
from core.topics import OBSERVATIONS, PREDICTIONS

KEYS: Final = 1_000_000
ROUNDS: Final = 3
OPENED: Final = re.compile(r"Partition (\d+) is open: .*?(\d+) records replayed in (\d+) ms")
"""What the worker logs of each partition."""


@benchmark
def replay(lab: Lab) -> Iterator[Result]:
    """The changelogs of 1,000,000 sessions, replayed into an empty folder by one worker that owns all partitions."""
    with lab.run("replay") as run:
        sides.deploy(lab, run)
        with (
            Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader,
            sides.ours(lab, run) as worker,
        ):
            Publisher(lab.bootstrap).publish(run.topic(OBSERVATIONS.name), Load().new_sessions(0, KEYS))
            worker.wait_until(lambda: reader.read(0.05) >= KEYS, DRAIN_S, "prediction of each session")
        rounds = [_round(lab, run, worker) for _ in range(ROUNDS)]
    rates = [records / seconds for records, seconds, _, _ in rounds]
    yield Result(
        "replay",
        statistics.median(rates),
        "records/s",
        lab.conditions(
            keys=KEYS,
            records=rounds[0][0],
            rounds=ROUNDS,
            min=round(min(rates)),
            max=round(max(rates)),
            cpu_s=round(statistics.median(cpu for _, _, cpu, _ in rounds), 2),
            peak_mb=round(max(peak for _, _, _, peak in rounds)),
            **sides.OURS.settings,
        ),
        goal=">= 270000",
    )


def _round(lab: Lab, run: Run, former: Worker) -> tuple[int, float, float, float]:
    """One start on an empty folder. Returns the records, the slowest partition's seconds, and the CPU seconds and the
    most MB of the whole start."""
    shutil.rmtree(run.folder / "data")
    former.log.unlink()
    with sides.ours(lab, run) as worker:
        worker.wait_until(lambda: len(_opened(worker)) == lab.partitions, START_S, "open partition of each number")
        cpu, peak = worker.cpu_s(), worker.peak_mb()
    opened = _opened(worker).values()
    return sum(records for records, _ in opened), max(ms for _, ms in opened) / 1000, cpu, peak


def _opened(worker: Worker) -> dict[int, tuple[int, int]]:
    """Partition -> records and ms, of those that are open. All begin at once, so the slowest one is the wait."""
    found = OPENED.findall(worker.log.read_text("utf-8", "replace"))
    return {int(partition): (int(records), int(ms)) for partition, records, ms in found}
