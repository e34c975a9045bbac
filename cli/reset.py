"""`faust -A app reset`: this worker's checkpoints go; what they were made of stays in the broker."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import click
from faust.cli.base import option

from cli.command import OperatorCommand, offering
from cli.report import Report
from core.errors import DataFolderError, SettingsError


class Reset(OperatorCommand):
    """Delete this worker's local state: the RocksDB checkpoints of its partitions.

    Nothing is lost with Apache Kafka: the changelogs hold every table, and the next start replays them, which takes
    longer than opening a checkpoint. Refused while a worker uses the folder.
    """

    options = offering(option("--yes", is_flag=True, default=False, show_default=False, help="Don't ask."))

    async def answer(self, yes: bool = False, **options: Any) -> Report:
        """Deletes what is certainly ours. Raises DataFolderError while a worker uses it."""
        folder = self.ours.engine.application_folder
        stores = partition_folders(folder)
        if not stores:
            return Report({"folder": str(folder), "deleted": []}, [f"{folder} holds no partition: nothing to delete."])
        for store in stores:
            refuse_if_used(store)
        size = sum(file.stat().st_size for store in stores for file in store.rglob("*") if file.is_file())
        what = f"{len(stores)} partitions ({size / 1e6:.1f} MB) in {folder}"
        if not yes:
            if self.json:
                raise SettingsError("reset --json deletes only with --yes")
            question = f"Delete the checkpoints of {what}? The next start replays their changelogs from the broker."
            if not click.confirm(question, err=True):
                return Report({"folder": str(folder), "deleted": []}, ["Nothing was deleted."], ok=False)
        for store in stores:
            shutil.rmtree(store)
        document = {
            "folder": str(folder),
            "deleted": [str(store.relative_to(folder)) for store in stores],
            "bytes": size,
        }
        return Report(document, [f"Deleted the checkpoints of {what}. The next start replays their changelogs."])


def partition_folders(folder: Path) -> list[Path]:
    """The RocksDB folders of workers' partitions: numbers in numbers, with RocksDB's own file in them. Nothing else is
    ever deleted."""
    if not folder.is_dir():
        return []
    workers = [path for path in folder.iterdir() if _numbered(path)]
    found = [
        path for worker in workers for path in worker.iterdir() if _numbered(path) and (path / "IDENTITY").is_file()
    ]
    return sorted(found, key=lambda path: (int(path.parent.name), int(path.name)))


def _numbered(path: Path) -> bool:
    return path.name.isdecimal() and path.is_dir() and not path.is_symlink()


def refuse_if_used(store: Path) -> None:
    """Raises DataFolderError while a process has the database open."""
    lock = store / "LOCK"
    if not lock.exists():
        return
    with lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataFolderError(f"{store} is in use: stop the worker first") from error
