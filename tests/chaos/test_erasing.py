"""A session that is erased while it gets events, while workers die, and down to the broker's files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported, not listed
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from cli.erasing import erase
from core.erasure import pseudonym
from core.settings import Settings
from core.topics import changelog
from engine.changelog import POSITIONS
from engine.connection import connect
from engine.publisher import partition_of
from tests import tally
from tests.chaos.conftest import OwnKafka
from tests.command import command, words_of
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS, Record, Sent, observation
from tests.timely.app import Click
from tests.worker import Worker, tails, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SESSION = "ann-9c1f7e"
PARTITIONS = 2
EAGER = "log.cleaner.backoff.ms=200\nlog.initial.task.delay.ms=100\nlog.retention.check.interval.ms=500"
COMPACTED_AT_ONCE = {
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "100",
}
TABLES = ("sessions", "per-second", "recent", "visits", "reminders", "questions")


def settings_of(rig: Rig) -> Settings:
    """Those of the rig's workers, for a command."""
    return Settings(
        broker=rig.broker.url, app_id=f"{rig.prefix}app", topic_prefix=rig.prefix, partitions=rig.partitions
    )


# -- the broker's files -----------------------------------------------------------------------------------------------


class Files:
    """The changelogs of one partition as they lie on the broker's disk."""

    def __init__(self, kafka: OwnKafka, rig: Rig, partition: int) -> None:
        settings = settings_of(rig)
        self.topics = {
            table: rig.prefix + changelog(settings.app_id, table).name
            for table in (*TABLES, "alarms", "deployments", POSITIONS)
        }
        self._admin = AdminClient({"bootstrap.servers": kafka.broker.bootstrap})
        self._logs, self._partition = kafka.folder / "logs", partition

    def compact_at_once(self) -> None:
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, value in COMPACTED_AT_ONCE.items()
                ],
            )
            for topic in self.topics.values()
        ]
        for done in self._admin.incremental_alter_configs(resources).values():
            done.result()

    def naming(self, session: str) -> set[str]:
        """The tables that have the session's bytes in any file, segments and what was made of them."""
        return {
            table
            for table, topic in self.topics.items()
            for file in self._files(f"{topic}-{self._partition}")
            if session.encode() in file
        }

    def topic_names(self, topic: str, session: str) -> bool:
        return any(session.encode() in file for file in self._files(f"{topic}-{self._partition}"))

    def _files(self, folder: str) -> Iterator[bytes]:
        for path in (self._logs / folder).iterdir():
            try:
                yield path.read_bytes()
            except FileNotFoundError:  # the broker has just removed it
                continue


def click(rig: Rig, session: str, number: int, ts: int) -> None:
    one = Click(f"c{number}", session, ts)
    rig.publisher.send(rig.topic("clicks"), session.encode(), msgspec.json.encode(one))


def observe(rig: Rig, session: str, number: int) -> None:
    one = Sent(f"{session}-{number}", session, EPOCH_MS + number, 1.0)
    rig.publisher.send(rig.topic("observations"), session.encode(), observation(one))


@pytest.mark.parametrize("own_kafka", [EAGER], indirect=True)
async def test_after_compaction_no_file_of_a_changelog_has_a_byte_of_an_erased_session(
    own_kafka: OwnKafka, tmp_path: Path
) -> None:
    with rig_on(own_kafka.broker, tmp_path, partitions=PARTITIONS) as rig:
        worker = rig.worker("a", app="tests.timely.app").start()
        rig.deploy()
        partition = partition_of(SESSION.encode(), PARTITIONS)
        others = [s for s in (f"s{n}" for n in range(50)) if partition_of(s.encode(), PARTITIONS) == partition]
        for number in range(3):
            observe(rig, SESSION, number)
            click(rig, SESSION, number, EPOCH_MS + number)
        rig.publisher.flush()
        files = Files(own_kafka, rig, partition)
        until(lambda: files.naming(SESSION) >= set(TABLES), 60, what="each table has the session", alive=[worker])

        report = await erase(await connect(settings_of(rig), rig.broker.url), SESSION, 60)
        assert report.document["state"] == "erased"
        assert {table for table, count in report.document["values"].items() if count} >= set(TABLES)
        for table in TABLES:
            assert worker.get(f"/tables/{table}/{SESSION}").status == 404

        files.compact_at_once()
        number = 0

        def gone() -> bool:
            """Segments are closed by what is written after them, so other sessions go on."""
            nonlocal number
            for session in others:
                number += 1
                observe(rig, session, number)
                click(rig, session, number, EPOCH_MS + number)
            rig.publisher.flush()
            return not files.naming(SESSION)

        until(gone, 180, what="no changelog names the session", alive=[worker])
        assert files.naming(others[0]) >= {"sessions"}
        assert not files.topic_names(rig.topic("alerts"), SESSION)
        assert SESSION not in worker.log(None)
        assert worker.terminate() == 0, tails([worker])


# -- under load -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["rig", "embedded_rig"])
def test_under_load_and_kills_each_erasure_starts_its_session_anew_once(
    which: str, request: pytest.FixtureRequest
) -> None:
    rig: Rig = request.getfixturevalue(which)
    worker = rig.worker("a", session_timeout=3 if which == "embedded_rig" else 6).start()
    rig.deploy()
    erased = [f"s{n}" for n in range(8)]
    with rig.sender(rate=1000, sessions=40) as sender:
        for _ in range(3):
            rig.wait_progress(1000)
            for session in erased:
                rig.control({"action": "erase", "session": session}, model=session)
            worker.kill()
            worker.start().wait_ready()
            rig.wait_progress(500)
    rig.wait_predictions()
    until(lambda: len(erasures(rig)) == 3 * len(erased), 60, what="every erasure has its alert", alive=rig.running())
    sender.send(1000)  # an erasure shows in what comes after it
    rig.wait_predictions()
    rig.terminate()
    resets = Counter[str]()
    for alert in erasures(rig):
        resets[alert["subject"]] += alert["evidence"]["values"]["sessions"]  # 0: no event since the one before
    assert resets.keys() == {pseudonym(session) for session in erased}
    counts: dict[str, dict[str, int]] = {}
    for record in sorted(rig.reader("predictions").read_out(), key=place):
        counts.setdefault(record.json["session"], {})[record.json["event_id"]] = round(
            tally.decode(record.json)["count"]
        )
    assert sum(map(len, counts.values())) == len(rig.sent)
    for session, found in counts.items():
        numbers = list(found.values())
        begins = [at for at, number in enumerate(numbers) if number == 1]
        assert len(begins) == 1 + resets[pseudonym(session)], (session, numbers)
        assert (len(begins) > 1) == (session in erased), (session, numbers)
        runs = zip(begins, [*begins[1:], len(numbers)], strict=True)
        assert numbers == [n for start, end in runs for n in range(1, end - start + 1)], session


def erasures(rig: Rig) -> list[dict[str, Any]]:
    """The alerts that tell of one; of those with one id the last."""
    reader = rig.reader("alerts")
    reader.catch_up()
    return list({r.json["id"]: r.json for r in reader.records if r.json["kind"] == "session_erased"}.values())


def place(record: Record) -> tuple[int, int]:
    """Partition and offset of what it answers."""
    _, partition, offset = json.loads(record.value or b"")["id"].split("/")
    return int(partition), int(offset)


# -- copies, and requests that wait -----------------------------------------------------------------------------------


async def test_a_copy_forgets_it_too_and_a_request_waits_for_a_worker(rig: Rig) -> None:
    owner, heir = (rig.worker(name, session_timeout=6, standbys=1) for name in ("a", "b"))
    owner.start()
    rig.deploy()
    observe(rig, SESSION, 1)
    rig.publisher.flush()
    rig.wait_records("predictions", 1)
    assert owner.terminate() == 0

    connection = await connect(settings_of(rig), rig.broker.url)
    report = await erase(connection, SESSION, 0.5)
    assert (report.ok, report.document["state"]) == (True, "waiting")
    assert report.document["request"] in report.lines[0]

    owner.start()
    until(lambda: len(erasures(rig)) == 1, 60, what="what waited is done", alive=[owner])
    observe(rig, SESSION, 2)
    rig.publisher.flush()
    rig.wait_records("predictions", 2)
    heir.start()
    until(lambda: copied(owner) or copied(heir), 60, what="the copy is current", alive=[owner, heir])
    until(lambda: on_disk(rig, owner) and on_disk(rig, heir), 30, what="both have it on disk", alive=[owner, heir])
    said = await asyncio.to_thread(command, "tables", "erase", SESSION, "--json", **words_of(settings_of(rig)))
    document = json.loads(said.stdout)
    assert (said.returncode, document["state"], document["values"]["sessions"]) == (0, "erased", 1), said.stderr
    assert SESSION not in said.stdout
    until(lambda: not (on_disk(rig, owner) or on_disk(rig, heir)), 60, what="no file names it", alive=[owner, heir])
    holder = next(worker for worker in (owner, heir) if copied(worker))
    other = heir if holder is owner else owner
    other.kill()
    until(lambda: holder.get(f"/tables/sessions/{SESSION}").status == 404, 60, what="it is gone", alive=[holder])
    observe(rig, SESSION, 3)
    rig.publisher.flush()
    rig.wait_records("predictions", 3)
    counts = [round(tally.decode(r.json)["count"]) for r in rig.reader("predictions").records]
    assert counts == [1, 1, 1]
    other.expected = False
    rig.terminate()


def on_disk(rig: Rig, worker: Worker) -> bool:
    """Whether a file of the worker's stores names the session."""
    for path in (rig.folder / f"data-{worker.name}").rglob("*"):
        try:
            if path.is_file() and SESSION.encode() in path.read_bytes():
                return True
        except FileNotFoundError:  # RocksDB has just removed it
            continue
    return False


def copied(worker: Worker) -> bool:
    """Whether the worker has a current copy of the session's partition."""
    answer = worker.get("/tables")
    ages = answer.json()["partitions"]["copies"] if answer.status == 200 else {}
    age = ages.get(str(partition_of(SESSION.encode(), 4)))
    return age is not None and age < 3
