"""The disk of the data folder becomes read-only in the middle of work: the worker ends with an error, and nothing is
lost. A full one is in tests/integration/test_data_folder.py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Rig
from tests.worker import Worker, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class Disk:
    """An ext4 in a file, that goes read-only when the kernel finds an error in it, as a dying disk does."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image = image
        self.folder = folder

    def mount(self, options: str = "errors=remount-ro") -> bool:
        """Whether this machine lets us."""
        return self._run("mount", "-o", f"loop,{options}", str(self.image), str(self.folder))

    def unmount(self) -> None:
        """Lets go of it, whoever still has files open there."""
        self._run("umount", "--lazy", str(self.folder))

    def fail(self) -> None:
        """From here on every write is refused, to files that are open too."""
        found = subprocess.run(
            ["findmnt", "-no", "SOURCE", str(self.folder)], capture_output=True, text=True, check=True
        )
        device = Path(found.stdout.strip()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    @staticmethod
    def _run(*command: str) -> bool:
        return (
            shutil.which(command[0]) is not None
            and not subprocess.run(command, capture_output=True, check=False).returncode
        )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "image", tmp_path / "disk")
    disk.folder.mkdir()
    with disk.image.open("wb") as file:
        file.truncate(64 << 20)
    if not disk._run("mkfs.ext4", "-q", str(disk.image)) or not disk.mount():
        pytest.skip("making and mounting a file system is not allowed here")
    yield disk
    disk.unmount()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_turns_read_only_ends_its_worker_and_loses_nothing(rig: Rig, disk: Disk, workers: int) -> None:
    worker = rig.worker("a", data_dir=disk.folder / "data", session_timeout=3).start()
    for _ in range(workers - 1):
        rig.worker("b", session_timeout=3).start()
    rig.deploy()
    with rig.sender(rate=1000):
        rig.wait_progress(2000)
        disk.fail()
        assert worker.wait(60) > 0, worker.log()
        assert_says(worker, disk)
        if workers > 1:
            rig.wait_progress(2000)
        disk.unmount()
        disk.mount()
        worker.start().wait_ready()
        rig.wait_progress(2000)
    rig.assert_exact()


def test_a_disk_that_is_read_only_at_the_start_is_an_error_that_says_so(rig: Rig, disk: Disk) -> None:
    disk.unmount()
    disk.mount("ro")
    worker = rig.worker("a", data_dir=disk.folder / "data").start()
    assert worker.wait(60) > 0, worker.log()
    assert_says(worker, disk)


def assert_says(worker: Worker, disk: Disk) -> None:
    """The log names the folder and what is wrong with it."""
    until(lambda: "ead-only" in worker.log(60), 5, what="the log says why")
    assert str(disk.folder) in worker.log(60), worker.log(60)
