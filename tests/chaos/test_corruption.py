"""RocksDB's files are damaged, cut or gone: the state comes back from the changelogs, and it is right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Rig
from tests.worker import Worker, until

KINDS = ["flipped SST", "cut SST", "no SST", "no MANIFEST", "cut MANIFEST", "no CURRENT", "flipped log", "no log"]
"""A file of RocksDB, and what happens to it."""


def test_each_partition_comes_back_from_another_damage(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    with rig.sender():
        keep_log(worker)
        worker.kill()
        for kind, store in zip(["flipped log", "no log", "no MANIFEST", "no CURRENT"], stores(worker), strict=True):
            harm(store, kind)
        worker.start().wait_ready()
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ends", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_between_two_starts_is_rebuilt(rig: Rig, kind: str, ends: str) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    with rig.sender():
        keep_state(rig, worker)
        if ends == "SIGKILL":
            worker.kill()
        else:
            assert worker.terminate() == 0
        for store in stores(worker):
            harm(store, kind)
        worker.start().wait_ready()
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_under_a_running_worker_is_rebuilt_when_its_partition_opens_again(rig: Rig, kind: str) -> None:
    worker = rig.worker("a", session_timeout=3).start()
    rig.deploy()
    with rig.sender():
        keep_state(rig, worker)
        for store in stores(worker):
            harm(store, kind)
        visitor = rig.worker("b", session_timeout=3).start().wait_ready()
        rig.wait_progress(500)
        visitor.kill()
        rig.wait_progress(4000)
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_flipped_byte_that_a_running_worker_reads_costs_no_event(rig: Rig) -> None:
    """Nearly every session is read from RocksDB, whose blocks have bad checksums by then."""
    worker = rig.worker("a", hot_sessions=8).start()
    rig.deploy()
    sender = rig.sender(sessions=20_000).send(40_000)
    rig.wait_predictions()
    keep_state(rig, worker)
    for store in stores(worker):
        harm(store, "flipped SST")
    sender.send(20_000)
    rig.wait_predictions(90)
    assert "is damaged" in worker.log(None)
    rig.assert_exact()
    assert not rig.reader("dead-letters").catch_up(), "good events were taken for bad ones"


def keep_state(rig: Rig, worker: Worker) -> None:
    """Has every partition's state in SST files, and in the log what came after: RocksDB writes them when it opens."""
    keep_log(worker)
    assert worker.terminate() == 0
    worker.start().wait_ready()
    until(lambda: all(sst(store) and logged(store) for store in stores(worker)), 20, what="SST files", alive=[worker])


def keep_log(worker: Worker) -> None:
    """Has every partition's state in its log."""
    until(lambda: all(logged(store) for store in stores(worker)), 20, what="a checkpoint", alive=[worker])


def stores(worker: Worker) -> list[Path]:
    """The folders of its partitions."""
    application = Path(worker.environment["HOMUNCULUS_DATA_DIR"]) / worker.environment["HOMUNCULUS_APP_ID"]
    return sorted(path for path in (application / "0").iterdir() if path.is_dir())


def sst(store: Path) -> list[Path]:
    return sorted(store.glob("*.sst"))


def logged(store: Path) -> bool:
    """Whether a checkpoint is in the write-ahead log."""
    return any(path.stat().st_size for path in store.glob("*.log"))


def harm(store: Path, kind: str) -> None:
    """Damages, cuts or removes every such file of a store."""
    how, _, what = kind.partition(" ")
    found = list(files(store, what))
    assert found, f"{store} has no {what}: {sorted(path.name for path in store.iterdir())}"
    for path in found:
        if how == "no":
            path.unlink()
            continue
        content = bytearray(path.read_bytes())
        if how == "cut":
            del content[len(content) // 2 :]
        else:
            chance = random.Random(path.name)
            for _ in range(max(3, len(content) // 5000) if content else 0):  # after a clean end a log may be empty
                content[chance.randrange(len(content))] ^= 0xFF
        with path.open("r+b") as file:  # in place: a running RocksDB has it open
            file.write(content)
            file.truncate(len(content))


def files(store: Path, what: str) -> Iterator[Path]:
    pattern = {"SST": "*.sst", "MANIFEST": "MANIFEST-*", "CURRENT": "CURRENT", "log": "*.log"}[what]
    return store.glob(pattern)
