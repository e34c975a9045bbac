"""What many partitions cost: 8 and 64 on one worker, 256 over four, under the same open loop."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import numpy as np
from confluent_kafka import Consumer, TopicPartition

from benchmarks import latency, sides
from benchmarks.lab import Lab, Run
from benchmarks.load import Load
from benchmarks.registry import Result, benchmark
from benchmarks.worker import Worker
from core.topics import PREDICTIONS, changelog

FLEETS: Final = ((1, 8), (1, 64), (4, 256))
"""Workers and partitions."""
RATE: Final = 2_000
OPEN_S: Final = 180.0
COMMIT_S: Final = 0.05


@benchmark
def scale(lab: Lab) -> Iterator[Result]:
    """End-to-end p99 in ms by number of partitions, with what a worker holds for them."""
    answered = msgspec.json.Decoder(latency.Answered).decode
    for workers, partitions in FLEETS:
        sized = replace(lab, partitions=partitions)
        with sized.run("scale") as run, ExitStack() as stack:
            sides.deploy(sized, run)
            fleet = [stack.enter_context(_worker(sized, run, f"w{n}")) for n in range(workers)]
            for worker in fleet:
                worker.wait_until(partial(_ready, worker.url), OPEN_S, "open partitions")
            # Not the first load: the broker compiles then, and touches each log's index for the first time.
            latency.gather(sized, run, PREDICTIONS.name, RATE)
            before, used, began = _commits(sized, run), _cpu(fleet), time.monotonic()
            taken, late = latency.measure(sized, run, PREDICTIONS.name, RATE, lambda raw: answered(raw).event_id)
            seconds = time.monotonic() - began
            parts = {name: float(np.percentile(taken, p)) for name, p in latency.SHOWN.items()} | {
                "commits a second and partition": (_commits(sized, run) - before) / partitions / seconds,
                "MB resident, largest worker": max(worker.rss_mb() for worker in fleet),
                "open files, largest worker": max(worker.open_files() for worker in fleet),
                "threads, largest worker": max(worker.threads() for worker in fleet),
                "ms of CPU a second, all workers": 1e3 * (_cpu(fleet) - used) / seconds,
            }
        yield Result(
            f"scale: {partitions} partitions on {workers} worker{'s' * (workers > 1)}",
            parts["p99"],
            "ms, p99",
            sized.conditions(
                rate=RATE,
                workers=workers,
                sessions=Load().sessions,
                commit_interval_s=COMMIT_S,
                guarantee="exactly_once",
                generator_late_p99_ms=round(late, 2),
            ),
            parts,
        )


def _worker(lab: Lab, run: Run, name: str) -> Worker:
    return sides.ours(lab, run, commit_interval=COMMIT_S, DATA_DIR=str(run.folder / "data" / name), WORKER_ID=name)


def _cpu(fleet: list[Worker]) -> float:
    return sum(worker.cpu_s() for worker in fleet)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _commits(lab: Lab, run: Run) -> float:
    """How many commits of a partition there were, over all: each is a record and a transaction's marker."""
    topic = run.prefix + changelog(f"{run.prefix}app", "positions").name
    consumer = Consumer({"bootstrap.servers": lab.bootstrap, "group.id": f"{run.prefix}scale"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30)[1] for n in range(lab.partitions)]
    finally:
        consumer.close()
    return sum(ends) / 2
