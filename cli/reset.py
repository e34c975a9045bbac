"""`faust -A app reset`: this worker's checkpoints go; what they were made of stays in the broker. With --from: all
state goes, and the input is read again from a time on."""

from __future__ import annotations

import fcntl
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.cli.base import option

from cli.command import OperatorCommand, offering
from cli.past import past
from cli.reach import reach
from cli.reading import partitions_of
from cli.report import Report, columns
from cli.state import may_replace
from core.errors import DataFolderError
from core.topics import CONTROL
from engine import snapshot
from engine.backup import scratch
from engine.connection import Connection
from engine.restore import Plan, refuse_while_used, replace_state
from engine.snapshot import changelogs
from tables.deployments import deployments


class Reset(OperatorCommand):
    """Delete this worker's local state: the RocksDB checkpoints of its partitions.

    Nothing is lost with Apache Kafka: the changelogs hold every table, and the next start replays them, which takes
    longer than opening a checkpoint. Refused while a worker uses the folder.

    With --from, in the broker: every table is emptied, and workers read the input again from that time on. What is
    deployed stays. Outputs are repeated with the same ids. Refused while any worker of the application runs.
    """

    options = offering(
        option("--from", "since", default=None, metavar="TIME", help="Reprocess: 2026-01-31T12:00Z."),
        option("--yes", is_flag=True, default=False, show_default=False, help="Don't ask."),
    )

    async def answer(self, yes: bool = False, since: str | None = None, **options: Any) -> Report:
        """Raises DataFolderError, BackupError while a worker is there."""
        return self._checkpoints(yes) if since is None else await self._reprocess(past(since, "--from"), yes)

    def _checkpoints(self, yes: bool) -> Report:
        """Deletes what is certainly ours."""
        folder = self.ours.engine.application_folder
        stores = partition_folders(folder)
        if not stores:
            return Report({"folder": str(folder), "deleted": []}, [f"{folder} holds no partition: nothing to delete."])
        for store in stores:
            refuse_if_used(store)
        size = sum(file.stat().st_size for store in stores for file in store.rglob("*") if file.is_file())
        what = f"{len(stores)} partitions ({size / 1e6:.1f} MB) in {folder}"
        question = f"Delete the checkpoints of {what}? The next start replays their changelogs from the broker."
        if not self.agreed(question, yes):
            return Report({"folder": str(folder), "deleted": []}, ["Nothing was deleted."], ok=False)
        for store in stores:
            shutil.rmtree(store)
        document = {
            "folder": str(folder),
            "deleted": [str(store.relative_to(folder)) for store in stores],
            "bytes": size,
        }
        return Report(document, [f"Deleted the checkpoints of {what}. The next start replays their changelogs."])

    async def _reprocess(self, since: datetime, yes: bool) -> Report:
        app = self.ours
        settings, control = app.settings, app.settings.topic_prefix + CONTROL.name
        connection = await reach(settings)
        await may_replace(app, connection)
        await refuse_while_used(connection, self._tell)
        count, tables = await snapshot.shape(connection, list(app.engine.tables))
        inputs = await partitions_of(connection, *sorted(app.engine.sources - {control}))
        starts, ends = await offsets_at(connection, since, [tp for tp in inputs if tp.partition < count])
        plans = await self._kept(connection, count, tables, control)
        for tp, offset in starts.items():
            plans[tp.partition].positions[tp.topic] = offset
        again = sum(ends[tp] - offset for tp, offset in starts.items())
        question = (
            f"Empty every table of {settings.app_id} but what is deployed, and read the input again from "
            f"{since.isoformat()} on ({again:,} events at most)? Outputs are repeated with the same ids."
        )
        if not self.agreed(question, yes):
            return Report({"from": since.isoformat(), "reset": False}, ["Nothing was changed."], ok=False)
        done = await replace_state(connection, tables, plans, list(starts), self._tell)
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "from": offset, "to": ends[tp]}
            for tp, offset in sorted(starts.items())
        ]
        document = {"from": since.isoformat(), "reset": True, "deleted": done.deleted, "input": rows}
        lines = columns(("topic", "partition", "from", "to"), [tuple(row.values()) for row in rows])
        lines.append(f"{done.deleted:,} values deleted. Workers that start read the input from {since.isoformat()} on.")
        return Report(document, lines)

    async def _kept(self, connection: Connection, count: int, tables: list[str], control: str) -> dict[int, Plan]:
        """What is deployed isn't made of events: how far `control` is read, and what came of it."""
        kept = [table for table in tables if table == deployments.name]
        found: dict[int, Plan] = {}
        with scratch(connection.settings) as room:
            async with changelogs(connection, kept, self._tell) as logs:
                for number in range(count):
                    with room.store(kept) as store:
                        marker = await logs.of(number).snapshot(store)
                        values = [pair for table in kept for pair in store.scan(table)]
                    positions = {topic: at for topic, at in marker.positions.items() if topic == control}
                    versions = {table: version for table, version in marker.versions.items() if table in kept}
                    found[number] = Plan(positions, -1, {deployments.name: values}, versions, marker.format)
        return found

    def _tell(self, line: str) -> None:
        if not self.json:
            print(line, file=sys.stderr, flush=True)


async def offsets_at(
    connection: Connection, since: datetime, inputs: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first record of each partition that was written at that time or later, and the end of each."""
    if not inputs:
        return {}, {}
    async with AIOKafkaConsumer(**connection.options, isolation_level=connection.isolation) as consumer:
        consumer.assign(inputs)  # else it learns of one topic at a time, each for a pause of 100 ms
        ends = await consumer.end_offsets(inputs)
        at = int(since.timestamp() * 1e3)
        found = await consumer.offsets_for_times(dict.fromkeys(inputs, at))
    return {tp: found[tp].offset if found.get(tp) else ends[tp] for tp in inputs}, ends


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
