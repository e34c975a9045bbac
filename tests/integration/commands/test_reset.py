"""`faust -A app reset`: the checkpoints go, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.store import Meta, PartitionStore, RocksMemory
from tests.command import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with two partitions, and things that aren't ours."""
    app = tmp_path / "data" / "homunculus"
    for number in (0, 11):
        store = PartitionStore(app / "0" / str(number), ["sessions"], RocksMemory())
        store.write({"sessions": {b"k": b"v"}}, Meta())
        store.close()
    (app / "0" / "7").mkdir()
    (app / "0" / "7" / "holiday.jpg").write_text("precious")
    (app / "notes.txt").write_text("precious")
    return app


def test_reset_deletes_the_checkpoints_and_nothing_else(folder: Path) -> None:
    found = command("reset", "--yes", "--json", data_dir=folder.parent)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["deleted"] == ["0/0", "0/11"]
    assert sorted(path.name for path in folder.rglob("*")) == ["0", "7", "holiday.jpg", "notes.txt"]


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("", True), ("y\n", False)])
def test_reset_asks_first(folder: Path, answer: str, left: bool) -> None:
    found = command("reset", stdin=answer, data_dir=folder.parent)
    assert (folder / "0" / "11").exists() is left
    assert (found.returncode == 0) is not left
    assert "Traceback" not in found.stderr


def test_reset_is_refused_while_a_worker_has_the_folder(folder: Path) -> None:
    store = PartitionStore(folder / "0" / "11", ["sessions"], RocksMemory())
    try:
        found = command("reset", "--yes", data_dir=folder.parent)
        assert found.returncode == 1
        assert "stop the worker" in found.stderr
        assert (folder / "0" / "0" / "CURRENT").exists()
    finally:
        store.close()


def test_reset_without_anything_to_delete_is_fine(tmp_path: Path) -> None:
    assert command("reset", data_dir=tmp_path / "none").returncode == 0
