"""Columnar rows: what is unfinished stays apart from what may be committed, whatever is evicted meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Slice
from engine.columns import ColumnShard, RowCodec
from engine.store import Meta, PartitionStore, RocksMemory

COLUMNS = ("count", "total")


def codec(*columns: str) -> RowCodec:
    return RowCodec(columns, np.zeros(len(columns)))


class Rig:
    """A shard with its store, and slices that add to its rows as a fold does."""

    def __init__(self, folder: Path, hot: int = 1000) -> None:
        self.store = PartitionStore(folder, ["sums"], RocksMemory())
        self.shard = ColumnShard("sums", self.store, codec(*COLUMNS), hot)

    def work(self, keys: list[bytes], amount: float) -> Slice[Any]:
        """A slice that adds an amount to each key."""
        s = cast(Slice[Any], SimpleNamespace(changed=[]))
        rows = self.shard.rows(s, keys)
        touched = np.unique(rows)
        for row in rows.tolist():
            self.shard.live[row] += (1, amount)
        self.shard.changed(s, touched, self.shard.live[touched].copy())
        return s

    def finish(self, s: Slice[Any]) -> None:
        for _, change in s.changed:
            self.shard.settle(change)

    def commit(self, checkpoint: bool = True) -> None:
        self.shard.absorb(self.shard.take())
        if checkpoint:
            self.store.write({"sums": self.shard.hand_over()}, Meta())
            self.shard.written()
            self.shard.tidy([])

    def value(self, key: bytes) -> list[float] | None:
        raw = self.shard.finished(key)
        return None if raw is None else self.shard.row_of(raw).tolist()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "p")


def test_what_is_unfinished_is_neither_seen_from_outside_nor_committed(rig: Rig) -> None:
    rig.finish(rig.work([b"a"], 1))
    rig.work([b"a"], 10)
    assert rig.value(b"a") == [1, 1]
    rows = dict(rig.shard.take())
    assert rig.shard.row_of(cast(bytes, rows[b"a"])).tolist() == [1, 1]


def test_a_rollback_leaves_the_finished_work_and_that_of_other_slices(rig: Rig) -> None:
    rig.finish(rig.work([b"a", b"b"], 1))
    kept = rig.work([b"b"], 5)
    given_up = rig.work([b"a"], 100)
    rig.shard.rollback([given_up], [kept])
    rig.finish(kept)
    rig.finish(rig.work([b"a"], 2))
    assert rig.value(b"a") == [2, 3]
    assert rig.value(b"b") == [2, 6]


def test_a_forgotten_session_starts_anew_even_before_its_tombstone_is_committed(rig: Rig) -> None:
    rig.finish(rig.work([b"a"], 7))
    rig.commit()
    rig.shard.expire([b"a"])
    assert rig.value(b"a") is None
    items = rig.shard.take()
    assert (b"a", None) in items
    rig.finish(rig.work([b"a"], 1))  # while the tombstone is on its way
    rig.shard.absorb(items)
    assert rig.value(b"a") == [1, 1]


def test_a_row_of_an_older_layout_keeps_what_both_know(rig: Rig) -> None:
    rig.finish(rig.work([b"a"], 7))
    rig.commit()
    rig.shard.relayout(codec("count", "newest", "total"))
    assert rig.value(b"a") == [1, 0, 7]
    rig.shard.absorb(rig.shard.take())
    rig.store.write({"sums": rig.shard.hand_over()}, Meta())
    reopened = ColumnShard("sums", rig.store, codec("total"), 10)
    assert reopened.row_of(cast(bytes, reopened.finished(b"a"))).tolist() == [7]


@settings(max_examples=25, deadline=None)  # each opens a RocksDB
@given(
    steps=st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.sampled_from("ckr")), max_size=25)
)
def test_whatever_is_evicted_committed_or_rolled_back_the_sums_are_right(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[int], str]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("columns") / "p", hot=5)
    expected: dict[bytes, list[float]] = {}
    for n, (numbers, then) in enumerate(steps):
        keys = [b"k%d" % number for number in numbers]
        s = rig.work(keys, n)
        if then == "r":
            rig.shard.rollback([s], [])
            continue
        rig.finish(s)
        for key in keys:
            count, total = expected.get(key, [0, 0])
            expected[key] = [count + 1, total + n]
        rig.commit(checkpoint=then == "k")
    assert {key: rig.value(key) for key in expected} == expected
    rig.commit()
    assert len(rig.shard) <= 6
    rig.store.close()
