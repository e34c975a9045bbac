"""A data folder that can't be used: the worker says which and why, and ends with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.rig import Rig

STRANGER: Final = 65534
"""A user that isn't ours."""
NO_PRIVILEGE: Final = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Runs root as a user like any other, who can't read what isn't theirs."""


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
def closed_folder(tmp_path: Path) -> Path:
    """A folder that its reader may not enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
        folder.chmod(0o700)
    return folder


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


def test_a_data_folder_that_cannot_be_read_is_an_error_that_names_it(rig: Rig, closed_folder: Path) -> None:
    through = NO_PRIVILEGE if os.geteuid() == 0 else []
    if through and (shutil.which(through[0]) is None or subprocess.run([*through, "true"], check=False).returncode):
        pytest.skip("root reads everything, and setpriv can't take that right away here")
    worker = rig.worker("a", data_dir=closed_folder, through=through).start()
    assert worker.wait(60) > 0, worker.log()
    assert str(closed_folder) in worker.log(), worker.log()
    assert "Permission denied" in worker.log(), worker.log()
