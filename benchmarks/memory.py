"""Whether the cap on hot sessions bounds the worker: many more sessions than it may keep, and old ones again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks import sides
from benchmarks.lab import Lab
from benchmarks.load import Load, Publisher
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from benchmarks.scoring import DRAIN_S, START_S
from core.topics import OBSERVATIONS, PREDICTIONS

SESSIONS: Final = 1_000_000
HOT: Final = 50_000
RETURNING: Final = 200_000
"""Cold sessions that come back at the end: each is read from RocksDB and puts another one out."""


@benchmark
def memory(lab: Lab) -> Iterator[Result]:
    """Resident memory above that of a worker whose hot set is just full, after 1,000,000 sessions went through it."""
    load = Load()
    with lab.run("memory") as run:
        sides.deploy(lab, run)
        publisher, source = Publisher(lab.bootstrap), run.topic(OBSERVATIONS.name)
        with (
            Reader(lab.bootstrap, run.topic(PREDICTIONS.name), lab.partitions, keep=False) as reader,
            sides.ours(lab, run, HOT_SESSIONS=str(HOT)) as worker,
        ):

            def through(first: int, count: int, within_s: float) -> float:
                """Sends sessions through the worker. Returns its resident MB once it rests."""
                due = reader.count + publisher.publish(source, load.new_sessions(first, count))
                worker.wait_until(lambda: reader.read(0.05) >= due, within_s, f"prediction number {due}")
                worker.wait_until_calm()
                return worker.rss_mb()

            parts = {"hot set full, MB": through(0, HOT, START_S)}
            parts["all sessions seen, MB"] = through(HOT, SESSIONS - HOT, DRAIN_S)
            parts["cold ones returned, MB"] = through(0, RETURNING, DRAIN_S)
            parts["peak, MB"] = worker.peak_mb()
    yield Result(
        "memory",
        parts["peak, MB"] - parts["hot set full, MB"],
        "MB of resident memory above the full hot set",
        lab.conditions(sessions=SESSIONS, hot_sessions=HOT, returning=RETURNING, **sides.OURS.settings),
        parts,
        goal="<= 300",
    )
