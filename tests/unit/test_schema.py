"""Values of older releases are read, those of newer ones are left alone: the same in every kind of table."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace, new_class
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from core.errors import MigrationError, NewerStateError, UsageError
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import Slice, working_on
from engine.columns import ColumnShard, RowCodec, alive
from engine.patterns import Pattern
from engine.schema import EXPIRES, Migration, Schema
from engine.store import PartitionStore, RocksMemory
from engine.table import Table
from engine.testing import in_memory
from engine.testing.log import changelog_of
from engine.windows import Tumbling, Windows
from tables.accumulators import FAMILIES
from tables.sessions import Sessions


@pytest.fixture(autouse=True)
def own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases of one application are processes of their own: here each may declare the same table."""
    monkeypatch.setattr(Table, "declared", {})


class Named(msgspec.Struct):
    first: str
    last: str
    visits: int = 0


class Model(BaseModel):
    first: str
    last: str


def of(base: Any, migrations: tuple[Migration, ...] = (), **members: Any) -> Any:
    """A release's table "things" over a base such as Table[str, int]."""
    Table.declared.clear()
    namespace = {"name": "things", "migrations": migrations, **members}
    return new_class("Things", (base,), {}, lambda ns: ns.update(namespace))()


def split(value: Any) -> Any:
    first, _, last = value.partition(" ")
    return {"first": first, "last": last}


def count(value: Any) -> Any:
    return value | {"visits": 1}


def test_a_value_of_each_older_version_is_read_as_one_of_today() -> None:
    one, two, three = (
        of(Table[str, str]),
        of(Table[str, dict[str, str]], (split,)),
        of(Table[str, Named], (split, count)),
    )
    assert three.decode(one.encode("Ada King")) == Named("Ada", "King", 1)
    assert three.decode(two.encode({"first": "Ada", "last": "King"})) == Named("Ada", "King", 1)
    assert three.decode(three.encode(Named("Ada", "King", 7))) == Named("Ada", "King", 7)
    assert of(Table[str, Model], (split,)).decode(one.encode("Ada King")) == Model(first="Ada", last="King")


def test_windows_migrate_each_aggregate_patterns_and_bytes_what_is_stored() -> None:
    windows: Any = {"windows": Tumbling(timedelta(seconds=1))}
    old = of(Windows[str, int], **windows)
    new = of(Windows[str, list[int]], (lambda total: [total, 1],), **windows)
    assert new.decode(old.encode([(0, 1000, 5), (1000, 2000, 7)])) == [(0, 1000, [5, 1]), (1000, 2000, [7, 1])]

    halves: Any = {"within": timedelta(seconds=1)}
    before = of(Pattern[str, str, str], **halves)
    after = of(Pattern[str, str, str], (lambda both: [both[0], [[ts, v.upper()] for ts, v in both[1]]],), **halves)
    assert after.decode(before.encode(([(1, "a")], [(2, "b")]))) == ([(1, "a")], [(2, "B")])

    assert of(Table[str, bytes], (bytes.upper,)).decode(of(Table[str, bytes]).encode(b"raw")) == b"RAW"


@given(written=st.integers(1, 8), releases=st.lists(st.integers(1, 8), min_size=1), start=st.integers())
def test_whichever_releases_have_rewritten_a_value_it_ends_as_if_the_newest_alone_had(
    written: int, releases: list[int], start: int
) -> None:
    tables = [of(Table[str, list[int]], tuple(_noting(n) for n in range(1, version))) for version in range(1, 9)]
    raw = tables[written - 1].encode([start])
    reached = written
    for version in releases:
        if version < reached:
            with pytest.raises(NewerStateError):
                tables[version - 1].decode(raw)
        else:
            raw, reached = tables[version - 1].encode(tables[version - 1].decode(raw)), version
    assert tables[reached - 1].decode(raw) == [start, *range(written, reached)]


def _noting(number: int) -> Callable[[list[int]], list[int]]:
    return lambda value: [*value, number]


def test_a_newer_value_is_refused_with_all_that_helps_and_without_the_value() -> None:
    new, old = of(Table[str, dict[str, str]], (split,)), of(Table[str, str])
    raw = new.encode({"first": "Secret", "last": "Secret"})
    shard = SimpleNamespace(get=lambda key: raw)
    working_on(cast(Slice[Any], SimpleNamespace(stale=False, partition=3, task=SimpleNamespace(shard=lambda _: shard))))
    with pytest.raises(NewerStateError) as refused:
        old["ann"]
    said = str(refused.value)
    for phrase in ("'things'", "partition 3", "'ann'", "version 2", "knows 1", "newer release", "backup"):
        assert phrase in said
    assert "Secret" not in said


def test_a_value_with_a_flag_of_a_later_release_is_refused() -> None:
    table = of(Table[str, int])
    raw = table.encode(5)
    with pytest.raises(NewerStateError):
        table.decode(bytes([raw[0] | EXPIRES]) + raw[1:])


@pytest.mark.parametrize("broken", [lambda value: value["Secret"], lambda value: {"first": 1}])
def test_a_migration_that_fails_says_where_and_keeps_the_value_to_itself(broken: Migration) -> None:
    raw = of(Table[str, str]).encode("Secret")
    with pytest.raises(MigrationError) as failed:
        of(Table[str, Named], (broken,)).decode(raw, b"ann")
    assert "'ann' of version 1 can't be made one of version 2" in str(failed.value)
    assert "Secret" not in str(failed.value)


def test_more_versions_than_a_byte_has_are_an_error() -> None:
    with pytest.raises(UsageError, match=r"migrations is a function; a tuple of one is written \(function,\)"):
        of(Table[str, int], lambda value: value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="255 migrations"):
        Schema("things", [split] * 255)


# -- rows of numbers --------------------------------------------------------------------------------------------------


def rows(folder: Path, columns: tuple[str, ...], migrations: tuple[Migration, ...] = ()) -> ColumnShard:
    store = PartitionStore(folder, ["sums"], RocksMemory())
    return ColumnShard("sums", store, RowCodec(columns, np.zeros(len(columns)), Schema("sums", migrations)), 10)


def seconds(row: dict[str, float]) -> dict[str, float]:
    return {name.replace("ms", "s"): value / 1000 if "ms" in name else value for name, value in row.items()}


def test_each_life_of_a_column_migrates_apart() -> None:
    old = ("count", "last_ms", alive("sum_ms", 1), alive("count", 2), alive("sum_ms", 2))
    raw = RowCodec(old, np.zeros(5)).encode_one(np.array([1.0, 2000.0, 3000.0, 4.0, 5000.0]))
    new = ("count", "last_s", alive("sum_s", 1), alive("count", 2), alive("sum_s", 2))
    codec = RowCodec(new, np.zeros(5), Schema("rows", (seconds,)), beside=2)
    assert codec.decode(raw, {raw[2:8]: old}).tolist() == [1, 2, 3, 4, 5]


def test_a_row_migrates_by_the_names_of_its_columns_whatever_its_layout(tmp_path: Path) -> None:
    shard = rows(tmp_path / "p", ("count", "last_ms"))
    s = cast(Slice[Any], SimpleNamespace(changed=[]))
    touched = shard.rows(s, [b"a"])
    shard.settle((touched, np.array([[2.0, 5000.0]]), shard.codec))
    items = dict(shard.take())
    shard._store.write({"sums": items})
    shard._store.close()
    shard = rows(tmp_path / "p", ("last_s", "mean", "count"), (seconds,))
    assert shard.live[shard.rows(s, [b"a"])].tolist() == [[5.0, 0.0, 2.0]]
    shard._store.close()

    older = rows(tmp_path / "p", ("count", "last_ms"))
    newer = RowCodec(("count", "last_ms"), np.zeros(2), Schema("sums", (seconds,))).encode(np.ones((1, 2)))[0]
    with pytest.raises(NewerStateError, match="'b'"):
        older.row_of(newer, b"b")
    older._store.close()


def test_a_row_costs_no_byte_more_than_its_layout_did() -> None:
    [raw] = RowCodec(("count",), np.zeros(1)).encode(np.array([[1.5]]))
    assert raw[:2] == b"\x00\x01"
    assert struct.unpack("<d", raw[8:]) == (1.5,)


def test_whoever_changes_what_a_sessions_columns_mean_adds_a_migration() -> None:
    """A part that is new, or means something else, must not be dropped by a release that doesn't know it: list it here
    and give Sessions a migration (one that changes nothing, if need be)."""
    parts = [part for family in FAMILIES for part in family.parts]
    known = "count first_ts last_ts n sum seen origin drift m2 min max last decay_ts decay_weight decay_mean"
    assert (len(Sessions.migrations) + 1, " ".join(parts)) == (1, known)


# -- a partition that releases hand to each other ---------------------------------------------------------------------


class Visit(msgspec.Struct):
    session: str


VISITS = TopicSpec("visits", "session", Visit, Direction.IN)
NOTES = TopicSpec("notes", "session", Visit, Direction.IN)


def counting(table: Any, add: Callable[[Any], Any], topic: TopicSpec[Any] = VISITS) -> Agent[Any]:
    async def body(stream: Stream[Visit]) -> None:
        async for batch in stream:
            for visit in batch:
                table[visit.session] = add(table.get(visit.session))

    return Agent(topic, body)


async def test_an_older_release_keeps_a_partition_closed_once_a_newer_one_has_written() -> None:
    old, new = of(Table[str, int]), of(Table[str, list[int]], (lambda n: [n],))
    before = counting(old, lambda n: (n or 0) + 1)
    after = counting(new, lambda n: [*(n or []), 1])
    async with in_memory([before], [old]) as trial:
        await trial.send(VISITS, [Visit("ann"), Visit("bob"), Visit("ann")])
        await trial.commit()
        await trial.release([after], [new])
        await trial.release([before], [old])  # rolled back before anything was written: all is well
        assert trial.value(old, "ann") == 2
        await trial.release([after], [new])
        await trial.send(VISITS, [Visit("ann")])
        await trial.commit()
        assert trial.value(new, "ann") == [2, 1]
        assert trial.value(new, "bob") == [1]
        things = changelog_of(trial.settings.app_id, "", "things", 0)
        kept = trial.log.newest(things)

        await trial.release([before], [old])
        assert trial.closed.keys() == {0}
        assert "partition 0, key 'ann'" in trial.closed[0]
        assert "version 2, this one knows 1" in trial.closed[0]
        assert not trial.engine.tasks[0].room(VISITS.name)
        await trial.commit()
        assert trial.log.newest(things) == kept

        await trial.release([after], [new])
        assert trial.value(new, "ann") == [2, 1]


async def test_what_only_the_newer_release_reads_waits_for_it_where_it_was() -> None:
    visits = of(Table[str, int])
    more = of(Table[str, int], name="more")
    one = counting(visits, lambda n: (n or 0) + 1)
    two = counting(more, lambda n: (n or 0) + 1, NOTES)
    async with in_memory([one, two], [visits, more]) as trial:
        await trial.send(NOTES, [Visit("ann")] * 3)
        await trial.commit()
        await trial.release([one], [visits])
        await trial.send(VISITS, [Visit("ann")])
        await trial.commit()
        await trial.release([one, two], [visits, more])
        assert not await trial.read(NOTES, 10)
        assert trial.value(more, "ann") == 3
