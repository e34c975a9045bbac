"""The checkpoint of a partition: what a restore brings is there when it says so, and the folder is free once closed."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from core.errors import CorruptStoreError, TaskError
from engine import store as module
from engine.store import Meta, PartitionStore, RocksMemory

TABLE = "values"
META = Meta("life", {"source": 20}, {TABLE: 7}, 5)


def opened(folder: Path) -> PartitionStore:
    return PartitionStore(folder / "store", [TABLE], RocksMemory())


def test_a_restore_brings_the_newest_values_and_what_they_stand_for(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write({TABLE: {b"a": b"0", b"gone": b"0"}}, Meta("life", {"source": 10}))
    store.begin_restore()
    store.restore(TABLE, {b"a": b"1", b"b": b"1", b"c": b"1"})
    store.restore(TABLE, {b"b": None, b"c": b"2", b"gone": None})
    store.restored(META)
    store.write({TABLE: {b"d": b"3"}})
    store.close()
    store = opened(tmp_path)
    assert dict(store.scan(TABLE)) == {b"a": b"1", b"c": b"2", b"d": b"3"}
    assert store.meta == META
    store.close()


def test_a_restore_that_was_cut_short_claims_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.begin_restore()
    store.restore(TABLE, {b"a": b"1"})
    store.close()
    store = opened(tmp_path)
    assert store.meta == Meta()
    store.close()


@pytest.mark.parametrize("step", ["begin_restore", "restored"])
def test_a_store_that_is_closed_while_it_reopens_leaves_the_folder_free(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    if step == "restored":
        store.begin_restore()
    within, closing = threading.Event(), threading.Event()
    reopen = store._reopen

    def slowly(bulk: bool) -> None:
        within.set()
        assert closing.wait(10)
        reopen(bulk)

    monkeypatch.setattr(store, "_reopen", slowly)
    restoring = threading.Thread(
        target=store.begin_restore if step == "begin_restore" else lambda: store.restored(META)
    )
    restoring.start()
    assert within.wait(10)
    closer = threading.Thread(target=store.close)
    closer.start()
    closing.set()
    for thread in (restoring, closer):
        thread.join(10)
        assert not thread.is_alive()
    opened(tmp_path).close()


def test_a_closed_store_is_not_opened_again_by_a_restore(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    for step in (store.begin_restore, lambda: store.restored(META), lambda: store.restore(TABLE, {b"a": b"1"})):
        with pytest.raises(TaskError, match="is closed"):
            step()
    opened(tmp_path).close()


def test_a_restore_is_told_when_rocksdb_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEHIND", 3)
    store = opened(tmp_path)
    store.begin_restore()
    for n in range(3):
        assert not store.behind(TABLE)
        store.restore(TABLE, {b"%d" % n: b"1"})
        store._flush()
    assert store.behind(TABLE)
    store.close()


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_store_gives_the_right_values_or_none_at_all(tmp_path: Path, damage: str) -> None:
    chance = random.Random(7)
    values = {b"k%04d" % n: chance.randbytes(40) for n in range(2000)}
    whole = tmp_path / "whole"
    store = PartitionStore(whole, ["t"], RocksMemory())
    store.begin_restore()
    store.restore("t", values)
    store.restored(Meta("life", {"source": 1}, {"t": 2000}, 3))
    store.close()
    store = PartitionStore(whole, ["t"], RocksMemory())
    store.write({"t": {b"k0000": values[b"k0000"]}}, Meta("life", {"source": 2}, {"t": 2001}, 3))
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)  # as a kill leaves it: what it stands for is in the write-ahead log alone
    store.close()
    for file in sorted(path.name for path in killed.iterdir() if path.suffix in {".sst", ".log"} or is_index(path)):
        folder = tmp_path / f"{damage}-{file}"
        shutil.copytree(killed, folder)
        harm(folder / file, damage, chance)
        store = PartitionStore(folder, ["t"], RocksMemory())
        try:
            found = {key: store.get("t", key) for key in values}
        except CorruptStoreError:
            store.close()
            store = PartitionStore(folder, ["t"], RocksMemory())  # as its task does
            found = {key: store.get("t", key) for key in values}
            assert not any(found.values())
        if store.meta == Meta():
            assert not any(found.values()), "values without what they stand for"
        else:
            assert found == values, f"{file}: {sum(value is None for value in found.values())} values are gone"
        store.close()


def is_index(path: Path) -> bool:
    return path.name == "CURRENT" or path.name.startswith("MANIFEST")


def harm(path: Path, damage: str, chance: random.Random) -> None:
    if damage == "gone":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        for _ in range(3):
            content[chance.randrange(len(content))] ^= 0xFF
    path.write_bytes(content)
