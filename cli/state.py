"""`faust -A app state`: the application's state into a file, a file against the changelogs, and a file's state back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import click
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.cli.base import argument, cli, option

from cli.command import OperatorCommand, offering
from cli.reach import reach
from cli.reading import partitions_of
from cli.report import Report, columns
from cli.shapes import topics
from core.errors import BackupError, SettingsError
from core.topics import TopicSpec, changelog
from engine import rights
from engine.admin import TopicAdmin, ensure_topics
from engine.app import App
from engine.archive import Archive, Manifest
from engine.backup import check, compare, export, scratch
from engine.changelog import POSITIONS
from engine.connection import Connection
from engine.rekey import place_anew
from engine.restore import Plan, refuse_while_used, refuse_without_transactions, replace_state
from engine.schema import refuse_newer
from engine.snapshot import Tell, unread
from engine.table import Table

EVERY_S: Final = 2.0
"""Between two lines of progress."""


@cli.group(help="Save the application's state to a file, check the file, and restore it.")
def state() -> None:
    """What follows is a command of its own."""


class StateCommand(OperatorCommand):
    """One of `faust -A app state ...`."""

    abstract: ClassVar[bool] = True

    @classmethod
    def as_click_command(cls) -> Callable[..., Any]:
        """Faust would make it a command beside `state`."""

        @click.pass_context
        @wraps(cls)
        def run(*args: Any, **kwargs: Any) -> None:
            cls(*args, **kwargs)()

        command: Any = state.command(help=cls.__doc__)(run)
        for each in cls.options or ():
            command = each(command)
        return cast(Callable[..., Any], command)

    def teller(self) -> Tell:
        """Progress for people: a line every so often, on stderr."""
        last = time.monotonic()

        def tell(line: str) -> None:
            nonlocal last
            if time.monotonic() - last > EVERY_S and not self.json:
                last = time.monotonic()
                print(line, file=sys.stderr, flush=True)

        return tell


FILE: Final = argument("file", type=click.Path(path_type=Path, dir_okay=False))


class Export(StateCommand):
    """Write the state to FILE: all tables, positions and watermarks, each partition as of one commit.

    Workers may go on meanwhile.
    """

    options = offering(FILE)

    async def answer(self, **options: Any) -> Report:
        """Raises BackupError; then there is no file."""
        file: Path = options["file"]
        app, began = self.ours, time.monotonic()
        connection = await reach(app.settings)
        await rights.check(connection, rights.Needed(_reads(connection, list(app.engine.tables), app.engine.sources)))
        manifest = await export(connection, list(app.engine.tables), app.engine.sources, file, self.teller())
        size, took = file.stat().st_size, time.monotonic() - began
        document = {"file": str(file), "bytes": size, "seconds": round(took, 3), **_summary(manifest)}
        return Report(document, [*_lines(manifest), f"{file}: {size / 1e6:.1f} MB, {took:.1f} s"])


class Verify(StateCommand):
    """Check that FILE is whole, and compare it with the changelogs as they were when it was made.

    What has changed since and was compacted can't be compared, and is counted. Exits with 1 when anything differs.
    """

    options = offering(FILE)

    async def answer(self, **options: Any) -> Report:
        """Raises DamagedFileError, BackupError."""
        file: Path = options["file"]
        tell = self.teller()
        with Archive(file) as archive:
            manifest = archive.manifest
            await asyncio.to_thread(check, archive, tell)
            document: dict[str, Any] = {"file": str(file), "whole": True, **_summary(manifest)}
            lines = [*_lines(manifest), f"{file} is whole: {manifest.records:,} values, as its manifest says."]
            try:
                _check_application(manifest, self.ours.settings.app_id, None)
                connection = await reach(self.ours.settings)
                await rights.check(connection, rights.Needed(_reads(connection, manifest.tables, ())))
                found = await compare(connection, archive, tell)
            except (SettingsError, BackupError) as error:
                document["error"] = str(error)
                return Report(document, [*lines, f"It was not compared: {error}"], ok=False)
        counts = {
            "same": found.same,
            "different": found.different,
            "missing": found.missing,
            "extra": found.extra,
            "changed_since_and_compacted": found.overwritten,
            "deleted_or_missing": found.untold,
        }
        document |= {
            "ok": found.ok,
            "compared": counts,
            "examples": found.examples,
            "not_compared": {str(number): why for number, why in found.not_compared.items()},
        }
        words = {
            "same": "the same in the changelog",
            "different": "DIFFERENT in the changelog",
            "missing": "MISSING in the changelog",
            "extra": "in the changelog, NOT IN THE FILE",
            "changed_since_and_compacted": "not to be compared: changed since, and what they were is compacted away",
            "deleted_or_missing": "not to be compared: not in the changelog, which forgets deletions after a day",
        }
        lines += [f"{count:12,}  {words[name]}" for name, count in counts.items() if count or name == "same"]
        lines += [f"partition {number} was not compared: {why}" for number, why in found.not_compared.items()]
        lines += [f"  {example}" for example in found.examples]
        lines.append("Nothing differs." if found.ok else "THE FILE AND THE CHANGELOGS DIFFER.")
        return Report(document, lines, ok=found.ok)


class Import(StateCommand):
    """Put the state of FILE in the place of the application's: a worker that starts then goes on from its positions.

    All of it or nothing, in one transaction. Refused while a worker runs. Outputs of what is read again are repeated,
    with the same ids.
    """

    options = offering(
        FILE,
        option("--application", default=None, help="The application that FILE is of, where it isn't this one."),
        option(
            "--new-topics", is_flag=True, default=False, show_default=False,
            help="The input topics were made anew: read them from their beginning.",
        ),
        option(
            "--rekey", is_flag=True, default=False, show_default=False,
            help="Into HOMUNCULUS_PARTITIONS partitions: each session goes where its records go from now on.",
        ),
        option("--yes", is_flag=True, default=False, show_default=False, help="Don't ask."),
    )  # fmt: skip

    async def answer(
        self,
        application: str | None = None,
        new_topics: bool = False,
        rekey: bool = False,
        yes: bool = False,
        **options: Any,
    ) -> Report:
        """Raises BackupError; then nothing has changed, but perhaps that topics have more partitions."""
        file: Path = options["file"]
        app, tell = self.ours, self.teller()
        settings = app.settings
        with ExitStack() as held:
            archive = held.enter_context(Archive(file))
            manifest = archive.manifest
            _check_application(manifest, settings.app_id, application)
            _check_prefix(manifest, settings.topic_prefix, new_topics)
            _check_count(manifest, settings.partitions, rekey, new_topics)
            _check_versions(manifest, app.engine.tables.values())
            await asyncio.to_thread(check, archive, tell)
            connection = await reach(settings)
            await may_replace(app, connection)
            await refuse_while_used(connection, tell)
            left_out = sorted(set(manifest.tables) - app.engine.tables.keys())
            gaps = [] if new_topics else await _check_positions(connection, manifest, app.engine.sources, rekey)
            if not self.agreed(_question(manifest, settings.app_id, left_out, gaps), yes):
                return Report({"file": str(file), "imported": False}, ["Nothing was changed."], ok=False)
            if rekey:
                store = held.enter_context(held.enter_context(scratch(settings)).store(list(app.engine.tables)))
                plans = await place_anew(archive, settings.partitions, app.engine.tables, store, tell)
            else:
                plans = {
                    one.partition: Plan(
                        one.positions,
                        one.watermark,
                        {table: archive.pairs(table, one.partition) for table in app.engine.tables},
                        one.versions,
                        one.format,
                    )
                    for one in manifest.state
                }
            sources = sorted(app.engine.sources)
            await self._make_topics(connection, sources if rekey else [], manifest.partitions)
            if new_topics:
                for plan in plans.values():
                    plan.positions = {}
            locks = [tp for tp in await partitions_of(connection, *sources) if tp.partition in plans]
            done = await replace_state(connection, list(app.engine.tables), plans, locks, tell)
            if rekey:
                await self._make_topics(connection, [], manifest.partitions)
        document = {
            "file": str(file),
            "imported": True,
            **_summary(manifest),
            "partitions": settings.partitions,
            "written": done.written,
            "deleted": done.deleted,
            "unchanged": done.unchanged,
            "left_out": left_out,
            "lost_input": gaps,
        }
        lines = [
            *_lines(manifest),
            f"Imported into {settings.partitions} partitions of {settings.app_id}: {done.written:,} values written, "
            f"{done.deleted:,} deleted, {done.unchanged:,} were there already. Workers may start.",
        ]
        return Report(document, lines)

    async def _make_topics(self, connection: Connection, later: list[str], before: int) -> None:
        """Those that a worker would make, and more partitions for those that have as many as before. The input's come
        last: until they have them no worker starts, and nobody writes to a partition without state."""
        app = self.ours
        specs: Mapping[str, TopicSpec[Any]] = {n: spec for n, spec in topics(app).items() if n not in later}
        count = app.settings.partitions
        async with TopicAdmin(connection.bootstrap, connection.security) as admin:
            shapes = await admin.shapes()
            small = [n for n in specs if n in shapes and shapes[n].partitions == before and before < count]
            await admin.extend(small, count)
        await ensure_topics(connection.bootstrap, specs.values(), app.settings, connection.security)


async def may_replace(app: App, connection: Connection) -> None:
    """Raises BackupError, RightsError where the broker can't or doesn't let us replace state as a whole."""
    refuse_without_transactions(connection)
    app_id, tables = connection.settings.app_id, list(app.engine.tables)
    needed = _reads(connection, tables, app.engine.sources)
    needed |= {name: frozenset({rights.READ, rights.WRITE}) for name in _changelog_names(connection, tables)}
    await rights.check(connection, rights.Needed(needed, app_id, f"{app_id}-import"))


def _check_application(manifest: Manifest, ours: str, named: str | None) -> None:
    if manifest.application not in (ours, named):
        raise BackupError(
            f"the file is of application {manifest.application!r}, this is {ours!r} (HOMUNCULUS_APP_ID): import takes "
            f"it with --application {manifest.application}"
        )


def _check_prefix(manifest: Manifest, ours: str, new_topics: bool) -> None:
    if manifest.topic_prefix != ours and not new_topics:
        raise BackupError(
            f"the file's positions are of topics with the prefix {manifest.topic_prefix!r}, HOMUNCULUS_TOPIC_PREFIX is "
            f"{ours!r}: take --new-topics to read the others from their beginning"
        )


def _check_versions(manifest: Manifest, tables: Iterable[Table[Any, Any]]) -> None:
    schemas = [table.schema for table in tables]
    for one in manifest.state:
        refuse_newer(one.partition, one.versions, one.format, schemas)


def _check_count(manifest: Manifest, count: int, rekey: bool, new_topics: bool) -> None:
    if manifest.partitions == count:
        return
    if not rekey:
        raise BackupError(
            f"the file has {manifest.partitions} partitions, HOMUNCULUS_PARTITIONS is {count}: --rekey places each "
            "session anew (docs/backup.md has the whole way)"
        )
    if new_topics:
        left = {f"{t}/{one.partition}": n for one in manifest.state for t, n in one.unread.items() if n}
        if left:
            raise BackupError(
                f"the file was made with input unread ({_some(left)}), which is in other partitions than its sessions "
                "would be: let the workers read all of it, and export again"
            )
    elif count < manifest.partitions:
        raise BackupError(
            f"topics can't lose partitions ({manifest.partitions} to {count}): make them anew, and take --new-topics"
        )


async def _check_positions(
    connection: Connection, manifest: Manifest, sources: set[str], rekey: bool
) -> list[dict[str, Any]]:
    """Raises BackupError where a position can't be one of the topics that are there. Returns what retention took."""
    wanted = {TopicPartition(t, one.partition): at for one in manifest.state for t, at in one.positions.items()}
    if rekey:
        unheard = {TopicPartition(t, one.partition) for one in manifest.state for t in sources} - wanted.keys()
        wanted |= dict.fromkeys(unheard & set(await partitions_of(connection, *sources)), 0)
    if not wanted:
        return []  # nothing was ever committed
    there = set(await partitions_of(connection, *{tp.topic for tp in wanted}))
    if gone := sorted({tp.topic for tp in wanted} - {tp.topic for tp in there}):
        raise BackupError(
            f"the broker has no topic {', '.join(gone)}, which the file's positions are of: take --new-topics where "
            "the input begins anew"
        )
    if lacking := sorted(wanted.keys() - there):
        raise BackupError(
            f"the broker has no partition {lacking[0].partition} of {lacking[0].topic}, which the file has a position "
            "of: the topic was made anew with fewer; make it with as many as the file has, and take --new-topics"
        )
    options = {**connection.options, "isolation_level": connection.isolation, "enable_auto_commit": False}
    async with AIOKafkaConsumer(**options) as consumer:
        consumer.assign(list(wanted))  # else it learns of one topic at a time, each for a pause of 100 ms
        begins, ends = await consumer.beginning_offsets(list(wanted)), await consumer.end_offsets(list(wanted))
        if beyond := {f"{tp.topic}/{tp.partition}": at for tp, at in wanted.items() if at > ends[tp]}:
            raise BackupError(
                f"the file's positions lie behind the ends of the topics ({_some(beyond)}): they are others than those "
                "that the file knows; take --new-topics to read them from their beginning"
            )
        if rekey:
            left = await unread(consumer, wanted)
            if waiting := {f"{tp.topic}/{tp.partition}": count for tp, count in left.items() if count}:
                raise BackupError(
                    f"there is input that the file hasn't seen ({_some(waiting)}), in other partitions than its "
                    "sessions would be: stop the producers, let the workers read all of it, and export again"
                )
    return [
        {"topic": tp.topic, "partition": tp.partition, "from": at, "to": begins[tp]}
        for tp, at in wanted.items()
        if at < begins[tp]
    ]


def _question(manifest: Manifest, app_id: str, left_out: list[str], gaps: list[dict[str, Any]]) -> str:
    more = ""
    if left_out:
        more += f" Left out, since this application has no such table: {', '.join(left_out)}."
    if gaps:
        lost = sum(gap["to"] - gap["from"] for gap in gaps)
        more += f" Retention has taken {lost:,} offsets of input that came after it: what they changed will be missing."
    return (
        f"Put the state of {manifest.created} ({manifest.records:,} values of {manifest.application}) in the place of "
        f"the state of {app_id}?{more}"
    )


def _some(what: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}: {number:,}" for name, number in list(what.items())[:3])
    return shown if len(what) <= 3 else f"{shown}, and {len(what) - 3} more"


def _changelog_names(connection: Connection, tables: list[str]) -> list[str]:
    settings = connection.settings
    return [settings.topic_prefix + changelog(settings.app_id, table).name for table in (*tables, POSITIONS)]


def _reads(connection: Connection, tables: list[str], sources: Any) -> dict[str, frozenset[str]]:
    names = [*_changelog_names(connection, tables), *sources]
    return dict.fromkeys(names, frozenset({rights.READ}))


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "application": manifest.application,
        "created": manifest.created,
        "partitions": manifest.partitions,
        "records": manifest.records,
        "tables": {
            table: sum(one.tables[table].records for one in manifest.state if table in one.tables)
            for table in manifest.tables
        },
        "state": [
            {
                "partition": one.partition,
                "positions": one.positions,
                "unread": one.unread,
                "watermark": None if one.watermark < 0 else one.watermark,
            }
            for one in manifest.state
        ],
    }


def _lines(manifest: Manifest) -> list[str]:
    rows = [
        (
            one.partition,
            f"{sum(part.records for part in one.tables.values()):,}",
            "-" if one.watermark < 0 else datetime.fromtimestamp(one.watermark / 1e3, UTC).isoformat("T", "seconds"),
            ", ".join(f"{topic} {at}" for topic, at in sorted(one.positions.items())) or "nothing was ever committed",
        )
        for one in manifest.state
    ]
    head = f"{manifest.application}, {manifest.created}"
    return [head, *columns(("partition", "values", "watermark", "positions"), rows)]
