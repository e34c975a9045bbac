"""A data folder that can't be used: the worker says which and why, and ends with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import ROOT

NOBODY: Final = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="rig-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def fill(disk: Path) -> Path:
    """Takes all the space that is left; returns the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_disk_that_fills_up_ends_the_worker_with_an_error_and_loses_nothing(small_disk: Path, rig: Rig) -> None:
    worker = rig.worker("a", data_dir=small_disk / "data").start()
    rig.deploy()
    with rig.sender(rate=3000, sessions=20_000):
        rig.wait_progress(2000)
        ballast = fill(small_disk)
        assert worker.wait(60) > 0, worker.log()
    assert str(small_disk) in worker.log(60)
    assert "space" in worker.log(60), worker.log(60)

    ballast.unlink()
    worker.start().wait_ready()
    rig.assert_exact()


def test_a_disk_that_is_full_at_start_is_an_error_that_says_so(small_disk: Path, rig: Rig) -> None:
    fill(small_disk)
    worker = rig.worker("a", data_dir=small_disk / "data").start()
    assert worker.wait(60) > 0, worker.log()
    assert str(small_disk) in worker.log(60)
    assert "space" in worker.log(60), worker.log(60)


def test_a_data_folder_that_cannot_be_read_is_an_error_that_names_it(kafka: Broker, open_folder: Path) -> None:
    """Root may read everything: so the worker runs as somebody else, where the test runs as root."""
    root = os.geteuid() == 0
    can_run = [sys.executable, "-c", "import faust, core"]
    if root and subprocess.run(can_run, user=NOBODY, cwd="/", env={"PYTHONPATH": str(ROOT)}, check=False).returncode:
        pytest.skip("another user can't run the worker's Python here")
    data = open_folder / "data"
    data.mkdir(mode=0o700 if root else 0o000)
    with rig_on(kafka, open_folder) as rig:
        worker = rig.worker("a", data_dir=data, user=NOBODY if root else None).start()
        assert worker.wait(60) > 0, worker.log()
        assert str(data) in worker.log(), worker.log()
        assert "Permission denied" in worker.log(), worker.log()
