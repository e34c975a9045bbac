"""The table of sessions: what it forgets, and when; what it shows."""

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
        s = cast(
            Slice[Any],
            SimpleNamespace(
                task=task,
                topic="observations",
                partition=0,
                first=0,
                oldest=0,
                records=[None],
                keys=[session.encode()],
                changed=[],
                newest=-1,
            ),
        )
        sessions.fold([s], np.array([float(ts)]), np.array([values], np.float64).reshape(1, len(values)))
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

    def shown(self, session: str) -> dict[str, Any]:
        raw = self.shard.finished(session.encode())
        assert raw is not None
        return sessions.describe(self.shard, raw)


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


# -- what it forgets -----------------------------------------------------------------------------------------------


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
    assert kept.shown("s")["count"] == 1


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


# -- what it shows -------------------------------------------------------------------------------------------------


def test_a_session_is_shown_by_what_models_ask_for_with_times_that_people_read(keep: Keep) -> None:
    kept = keep("session.mean.value", "session.zscore.value", "session.max.other", "session.decayed_mean.value@90m")
    for number, value in enumerate((1.0, 2.0, 6.0)):
        kept.event("s", START_MS + number * MINUTE_MS, value, np.nan)
    shown = kept.shown("s")
    accumulators = shown.pop("accumulators")
    weights = [2 ** (-2 / 90), 2 ** (-1 / 90), 1.0]
    assert shown.pop("decayed_mean.value@90m") == pytest.approx(np.average((1.0, 2.0, 6.0), weights=weights))
    assert shown == {
        "count": 3,
        "first_ts": "2023-11-14T22:13:20.000Z",
        "last_ts": "2023-11-14T22:15:20.000Z",
        "seconds_since_first": 120,
        "mean_gap": 60,
        "sum.value": 9,
        "mean.value": 3,
        "variance.value": 7,
    }
    assert accumulators["n.value"] == accumulators["seen.value"] == 3
    assert accumulators["m2.value"] == 14
    assert accumulators["decay_ts.value@5400s"] == "2023-11-14T22:15:20.000Z"
    assert not {"count", "first_ts", "last_ts", "sum.value"} & accumulators.keys()


def test_a_session_is_shown_by_what_is_asked_for_since(keep: Keep) -> None:
    kept = keep("session.count")
    kept.event("s", START_MS)
    sessions.want([cast(SessionFeature, parse("session.last.value"))])
    assert kept.shown("s")["count"] == 1
    kept.event("s", START_MS + 1, 5.0)
    assert kept.shown("s")["last.value"] == 5
