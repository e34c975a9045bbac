"""What was erased leaves a store's files within a bounded time; all else stays, whatever is closed or killed then."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.errors import TaskError
from engine import scrubbing
from engine.engine import Engine
from engine.scrubbing import LEFT_S, Scrubber
from engine.store import Meta, PartitionStore, RocksMemory

TABLES = ("sessions", "timers", "empty")
GONE, ITS_VALUE = b"ann-7f31c09be2d84a65", b"value-of-93ab77d10c5e"
"""Told apart from anything else, and too varied for compression to hide."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(folder: Path) -> PartitionStore:
    return PartitionStore(folder, TABLES, RocksMemory())


def others(count: int = 2000) -> dict[bytes, bytes | None]:
    chance = random.Random(5)
    return {b"s%05d" % n: chance.randbytes(60) for n in range(count)}


def naming(folder: Path, *words: bytes) -> set[str]:
    """The files that have one of these words, as it is or as RocksDB's log writes keys."""
    found = set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:  # RocksDB has just deleted it
            continue
        if any(word in raw or word.hex().upper().encode() in raw for word in words):
            found.add(path.name)
    return found


def filled(folder: Path, how: str) -> PartitionStore:
    """A store with the session in both tables: in its write-ahead log, in one file, or in several levels of files."""
    store = opened(folder)
    if how == "replayed":
        store.begin_restore()
        for table in ("sessions", "timers"):
            store.restore(table, others() | {GONE: ITS_VALUE})
        store.restored(Meta("life", {"in": 1}))
    elif how == "in levels":
        for turn in range(3):
            store.write({table: others() | {GONE: ITS_VALUE + b"%d" % turn} for table in ("sessions", "timers")})
            store._flush()
            if turn == 0:
                for table in TABLES:
                    store._view(table).compact_range(None, None)
    else:
        store.write({table: others() | {GONE: ITS_VALUE} for table in ("sessions", "timers")})
    return store


def is_tainted(store: PartitionStore) -> bool:
    return store.tainted


def erase(store: PartitionStore) -> None:
    store.write({table: {GONE: None} for table in TABLES}, Meta("life", {"in": 2}, erased="control/0/7"))


@pytest.mark.parametrize("how", ["written", "in levels", "replayed"])
def test_no_file_has_a_byte_of_what_was_erased_and_everything_else_stays(folder: Path, how: str) -> None:
    store = filled(folder, how)
    assert not is_tainted(store)
    erase(store)
    assert is_tainted(store)
    assert naming(folder, GONE, ITS_VALUE)
    store.scrub()
    assert not naming(folder, GONE, ITS_VALUE)
    assert not is_tainted(store)
    for table in ("sessions", "timers"):
        assert dict(store.scan(table)) == others()
    store.write({"sessions": {b"more": b"1"}}, Meta("life", {"in": 3}, erased="control/0/7"))
    store.close()
    store = opened(folder)
    assert not store.tainted
    assert store.get("sessions", b"more") == b"1"
    store.close()


def test_only_the_first_session_of_a_table_leaves_its_name_in_no_list_of_files(folder: Path) -> None:
    store = opened(folder)
    store.write({"sessions": {GONE: ITS_VALUE}})
    store._flush()
    assert any(name.startswith("MANIFEST") for name in naming(folder, GONE))
    erase(store)
    store.scrub()
    assert not naming(folder, GONE, ITS_VALUE)
    store.close()


def test_a_store_that_is_killed_before_it_was_scrubbed_is_so_afterwards(folder: Path, tmp_path: Path) -> None:
    store = filled(folder, "written")
    erase(store)
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    store.close()
    store = opened(killed)
    assert store.tainted
    store.scrub()
    assert not naming(killed, GONE, ITS_VALUE)
    store.close()


def test_a_store_that_is_closed_while_it_is_scrubbed_gives_it_up_and_leaves_the_folder_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(folder, "in levels")
    erase(store)
    compacting, closing = threading.Event(), threading.Event()
    view = store._view

    def stopped(table: str) -> Any:
        def compact_range(*_: Any) -> None:
            compacting.set()
            assert closing.wait(10)

        return SimpleNamespace(compact_range=compact_range) if table == TABLES[0] else view(table)

    monkeypatch.setattr(store, "_view", stopped)
    raised: list[BaseException] = []

    def scrub() -> None:
        try:
            store.scrub()
        except BaseException as error:
            raised.append(error)

    scrubbing_thread = threading.Thread(target=scrub)
    scrubbing_thread.start()
    assert compacting.wait(10)
    closer = threading.Thread(target=store.close)
    closer.start()
    while not store._closing:
        pass
    closing.set()
    for thread in (scrubbing_thread, closer):
        thread.join(10)
        assert not thread.is_alive()
    assert isinstance(raised[0], TaskError)
    store = opened(folder)
    assert store.tainted
    assert store.get("sessions", GONE) is None
    assert dict(store.scan("timers")) == others()
    store.close()


def test_many_closings_in_the_middle_of_it_cost_nothing(folder: Path) -> None:
    chance = random.Random(3)
    for turn in range(8):
        store = filled(folder, "written")
        erase(store)
        thread = threading.Thread(target=_scrub, args=(store,))
        thread.start()
        thread.join(chance.uniform(0, 0.02))
        store.close()
        thread.join(10)
        store = opened(folder)
        assert dict(store.scan("sessions")) == others(), turn
        store.close()


def _scrub(store: PartitionStore) -> None:
    try:
        store.scrub()
    except TaskError:
        return


# -- of a worker ------------------------------------------------------------------------------------------------------


def worker(folder: Path, tasks: dict[int, Any], copies: dict[int, Any]) -> Engine:
    folder.mkdir(parents=True, exist_ok=True)
    standbys = SimpleNamespace(copies=copies)
    return cast(Engine, SimpleNamespace(tasks=tasks, standbys=standbys, folder=folder, fatal=None))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "LOOK_S", 0.01)
    monkeypatch.setattr(scrubbing, "REST", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_stores_of_tasks_and_of_copies_are_scrubbed(tmp_path: Path) -> None:
    stores = [filled(tmp_path / "worker" / str(n), "written") for n in range(2)]
    for store in stores:
        erase(store)
    engine = worker(
        tmp_path / "worker",
        {0: SimpleNamespace(store=stores[0]), 2: SimpleNamespace(store=None)},
        {1: SimpleNamespace(store=stores[1])},
    )
    looking = asyncio.create_task(Scrubber(engine).run())
    async with asyncio.timeout(20):
        while any(store.tainted for store in stores):
            await asyncio.sleep(0.01)
    assert not naming(tmp_path / "worker", GONE, ITS_VALUE)
    looking.cancel()
    for store in stores:
        store.close()


async def test_a_folder_whose_partition_has_been_elsewhere_for_an_hour_is_deleted(tmp_path: Path) -> None:
    for n in range(3):
        filled(tmp_path / str(n), "written").close()
    (tmp_path / "worker.lock").touch()
    (tmp_path / "not-ours").mkdir()
    (tmp_path / ".gone-9-1").mkdir()  # of a worker that died while it deleted it
    tasks: dict[int, Any] = {0: SimpleNamespace(store=None)}
    scrubber = Scrubber(worker(tmp_path, tasks, {1: SimpleNamespace(store=None)}))
    await scrubber._delete(scrubber._left_behind(0.0))
    await scrubber._delete(scrubber._left_behind(LEFT_S))
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2", "worker.lock", "not-ours"}
    tasks[2] = tasks.pop(0)  # back in use, and another one left
    await scrubber._delete(scrubber._left_behind(LEFT_S + 1))
    tasks.clear()
    await scrubber._delete(scrubber._left_behind(LEFT_S + 2))
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2", "worker.lock", "not-ours"}
    await scrubber._delete(scrubber._left_behind(2 * LEFT_S + 2))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2", "worker.lock", "not-ours"}
