"""The table of sessions: what it forgets, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from engine.batch import Slice
from engine.columns import ColumnShard
from engine.store import Meta, PartitionStore, RocksMemory
from models.features import SessionFeature, parse
from tables.sessions import sessions

TTL: Final = timedelta(minutes=10)
START_MS: Final = 1_700_000_000_000
MINUTE_MS: Final = 60_000

Keep = Callable[..., "Kept"]


class Kept:
    """A table of sessions in one partition, with a store and no broker. Every event is finished and committed."""

    def __init__(self, folder: Path, *wanted: str) -> None:
        sessions.configure([cast(SessionFeature, parse(name)) for name in wanted], TTL, hot=2)
        self.store = PartitionStore(folder, [sessions.name], RocksMemory())
        self.shard = cast(ColumnShard, sessions.shard(self.store))
        self.watermark = -1

    def event(self, session: str, ts: int, *values: float, finish: bool = True) -> Slice[Any]:
        """One event, with the fields' values in the order of sessions.fields."""
        task = SimpleNamespace(shard=lambda name: self.shard)
        s = cast(Slice[Any], SimpleNamespace(task=task, keys=[session.encode()], changed=[], newest=-1))
        sessions.fold(s, np.array([float(ts)]), np.array([values], np.float64).reshape(1, len(values)))
        if finish:
            for _, change in s.changed:
                self.shard.settle(change)
            self.watermark = max(self.watermark, s.newest)
            self.commit()
        return s

    def commit(self, *unfinished: Slice[Any]) -> None:
        """A commit and its checkpoint."""
        self.shard.absorb(self.shard.take())
        self.store.write({sessions.name: self.shard.hand_over()}, Meta())
        self.shard.written()
        self.shard.tidy(unfinished)

    def expire(self, *unfinished: Slice[Any]) -> list[str]:
        """A sweep with the commit that follows it; returns who is left."""
        sessions.expire(self.shard, self.watermark, unfinished)
        self.commit(*unfinished)
        return [key.decode() for key, _ in self.shard.items(b"", 100)]

    def count(self, session: str) -> float:
        raw = self.shard.finished(session.encode())
        assert raw is not None
        return float(self.shard.row_of(raw)[0])


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    """Makes the table with the features that are asked for."""
    made: list[Kept] = []

    def build(*wanted: str) -> Kept:
        made.append(Kept(tmp_path / str(len(made)), *wanted))
        return made[-1]

    yield build
    for kept in made:
        kept.store.close()
    sessions.configure((), ttl=None, hot=1)


def test_what_is_silent_for_longer_than_the_ttl_goes_wherever_it_is_kept(keep: Keep) -> None:
    kept = keep("session.count")
    for number in range(6):  # two of them stay in memory
        kept.event(f"s{number}", START_MS + number * MINUTE_MS)
    kept.event("awake", START_MS + 12 * MINUTE_MS)
    assert kept.expire() == ["awake", "s2", "s3", "s4", "s5"]
    kept.event("awake", START_MS + 60 * MINUTE_MS)
    assert kept.expire() == ["awake"]


def test_a_session_that_was_forgotten_starts_from_nothing(keep: Keep) -> None:
    kept = keep("session.count")
    kept.event("s", START_MS)
    kept.event("awake", START_MS + 11 * MINUTE_MS)
    kept.expire()
    kept.event("s", START_MS + MINUTE_MS)
    assert kept.count("s") == 1


def test_a_session_at_work_is_not_forgotten(keep: Keep) -> None:
    kept = keep("session.count")
    kept.event("s", START_MS)
    kept.event("awake", START_MS + 11 * MINUTE_MS)
    late = kept.event("s", START_MS + MINUTE_MS, finish=False)
    assert kept.expire(late) == ["awake", "s"]


def test_an_event_ahead_of_the_clock_ends_nobody_elses_session(keep: Keep) -> None:
    kept, now = keep("session.count"), int(1e3 * time.time())
    kept.event("s", now - MINUTE_MS)
    kept.event("wrong", now + 20 * 60 * MINUTE_MS)
    assert kept.expire() == ["s", "wrong"]


def test_expiry_does_not_wait_for_a_change(keep: Keep) -> None:
    kept = keep("session.count")
    kept.event("s", START_MS)
    kept.event("awake", START_MS + 11 * MINUTE_MS)
    sessions.expire(kept.shard, kept.watermark, [])
    assert kept.shard.touched
    assert (b"s", None) in kept.shard.take()
