"""`faust -A app replay`: dead letters go back to where they came from, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from faust.cli.base import option

from cli.command import OperatorCommand, offering
from cli.progress import Progress
from cli.reach import reach
from cli.reading import partitions_of, to_the_end
from cli.report import Report
from cli.shapes import topics
from core.errors import ScoreError, UsageError
from core.settings import Guarantee
from core.topics import DEAD_LETTERS, Direction
from engine import rights
from engine.admin import TopicAdmin
from engine.connection import Connection

ORIGIN = frozenset({"source", "error", "message", "time"})
"""Headers of a dead letter that tell of the failure, and stay behind."""


TRUNCATED = "was too large to be kept whole"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant: all, those of one topic, those of one error."""

    topics: Mapping[str, int]
    """Topics that may be written to, as the broker names them, with their partition counts."""
    source: str | None
    error: str | None

    @property
    def narrow(self) -> bool:
        """Whether letters that could go back are left out."""
        return self.source is not None or self.error is not None

    def refusal(self, headers: Mapping[str, bytes]) -> str | None:
        """Why a letter stays, or None when it is to be replayed."""
        topic, partition = origin(headers)
        error = headers.get("error", b"").decode("utf-8", "replace")
        if (self.source is not None and topic != self.source) or (self.error is not None and error != self.error):
            return "not asked for"
        if "truncated" in headers:
            return TRUNCATED
        if error == ScoreError.__name__ and self.error != error:
            return "its session has the event already: --error ScoreError replays it all the same"
        if partition >= self.topics.get(topic, 0):
            return "its source is no input topic of this application"
        return None


@dataclass(slots=True)
class Tally:
    """What a replay has met."""

    replayed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By source topic and error."""
    left: Counter[str] = field(default_factory=Counter)
    """By reason."""


class Replay(OperatorCommand):
    """Send dead letters back to the topics they came from, each at most once over all calls.

    Each keeps its key, value and partition, and gets the header replayed=dead-letters/PARTITION/OFFSET. What was
    replayed is remembered as the offsets of the consumer group APP_ID-replay.
    """

    options = offering(
        option("--source", default=None, help="Only letters from this topic."),
        option("--error", default=None, help="Only letters with this error class, e.g. FieldError."),
        option("--dry-run", is_flag=True, default=False, show_default=False, help="Count, and send nothing."),
    )

    async def answer(
        self, source: str | None = None, error: str | None = None, dry_run: bool = False, **_: Any
    ) -> Report:
        """Replays what stands there at this moment. Raises UsageError for a source that is no input."""
        settings = self.ours.settings
        connection = await reach(settings)
        inputs = await self._inputs(connection)
        if source is not None:
            source = source if source in inputs else settings.topic_prefix + source
            if source not in inputs:
                raise UsageError(f"--source: {source} is no input topic; there are {', '.join(sorted(inputs))}")
        await _check_rights(connection, [source] if source is not None else inputs, dry_run)
        tally = await replay(connection, Filter(inputs, source, error), dry_run)
        count = tally.replayed.total()
        document = {
            "dry_run": dry_run,
            "replayed": count,
            "by_source": [{"topic": t, "error": e, "count": n} for (t, e), n in sorted(tally.replayed.items())],
            "left": dict(sorted(tally.left.items())),
        }
        lines = [f"{n:8,}  {topic}  {kind}" for (topic, kind), n in sorted(tally.replayed.items())]
        lines += [f"{n:8,}  left: {reason}" for reason, n in sorted(tally.left.items())]
        done = "would be replayed" if dry_run else "replayed"
        return Report(document, [*lines, f"{count:,} dead letters {done}."])

    async def _inputs(self, connection: Connection) -> dict[str, int]:
        async with TopicAdmin(connection.bootstrap, connection.security) as admin:
            shapes = await admin.shapes()
        wanted = [name for name, spec in topics(self.ours).items() if spec.direction is Direction.IN]
        return {name: shapes[name].partitions for name in wanted if name in shapes}


async def _check_rights(connection: Connection, sources: Iterable[str], dry_run: bool) -> None:
    group = f"{connection.settings.app_id}-replay"
    topics = {} if dry_run else dict.fromkeys(sources, frozenset({rights.WRITE}))
    topics[connection.settings.topic_prefix + DEAD_LETTERS.name] = frozenset({rights.READ})
    writes = connection.transactional and not dry_run
    await rights.check(connection, rights.Needed(topics, group, group if writes else None))


async def replay(connection: Connection, wanted: Filter, dry_run: bool) -> Tally:
    """Reads every letter that waits, sends those that are wanted, and notes it: with the broker's transactions both or
    neither; without, a crash in between repeats the last few hundred."""
    settings = connection.settings
    group = f"{settings.app_id}-replay"
    transactional = connection.guarantee is Guarantee.EXACTLY_ONCE
    tally = Tally()
    partitions = await partitions_of(connection, settings.topic_prefix + DEAD_LETTERS.name)
    if not partitions:
        return tally
    async with AsyncExitStack() as held:
        producer = None
        if not dry_run:  # first: it fences another replay, which then notes nothing more
            transactional_id = group if transactional else None
            producer = AIOKafkaProducer(**connection.options, transactional_id=transactional_id)
            await held.enter_async_context(producer)
        consumer = AIOKafkaConsumer(
            **connection.options,
            group_id=None if transactional else group,
            isolation_level=connection.isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await held.enter_async_context(consumer)
        progress = await _progress(connection, group, partitions)
        if wanted.narrow and not (dry_run or transactional):
            await _check_memory(connection, group, consumer, progress)
        async for tp, letters in to_the_end(connection, consumer, {tp: progress[tp].start for tp in partitions}):
            chosen = _choose(tp, letters, progress[tp], wanted, tally)
            if producer is None:
                continue
            offset, metadata = progress[tp].encode()
            if transactional:
                async with producer.transaction():
                    await _send(producer, chosen)
                    noted = {tp: OffsetAndMetadata(offset, metadata)}
                    await producer.send_offsets_to_transaction(noted, group)
            else:
                await _send(producer, chosen)
                await consumer.commit({tp: (offset, metadata)})
    return tally


async def _check_memory(
    connection: Connection, group: str, consumer: AIOKafkaConsumer, progress: Mapping[TopicPartition, Progress]
) -> None:
    """Raises UsageError for a broker that keeps offsets without their metadata, as the embedded one does."""
    tp, before = next(iter(progress.items()))
    consumer.assign([tp])
    offset, left = before.encode()
    await consumer.commit({tp: (offset, f"{left},")})
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        noted = await admin.client.list_consumer_group_offsets(group, partitions=[tp])
    if not noted[tp].metadata.endswith(","):
        raise UsageError(
            "this broker can't remember which letters a filter leaves out, so they would be lost to later replays: "
            "replay without --source and --error"
        )


async def _progress(
    connection: Connection, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, Progress]:
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        noted = await admin.group_offsets(group, partitions)
    none = OffsetAndMetadata(-1, "")
    return {tp: Progress.decode(*noted.get(tp, none)) for tp in partitions}


def _choose(tp: TopicPartition, letters: list[Any], progress: Progress, wanted: Filter, tally: Tally) -> list[Any]:
    """The arguments of producer.send for the letters that go back."""
    chosen = []
    for letter in letters:
        if not progress.waits(letter.offset):
            progress.replayed(letter.offset)
            continue
        headers = {name: value or b"" for name, value in letter.headers}
        why_not = wanted.refusal(headers)
        if why_not is not None:
            # One that can never go back needs no remembering.
            (progress.replayed if why_not == TRUNCATED else progress.kept)(letter.offset)
            tally.left[why_not] += 1
            continue
        progress.replayed(letter.offset)
        topic, partition = origin(headers)
        tally.replayed[topic, headers.get("error", b"").decode("utf-8", "replace")] += 1
        kept = [(name, value) for name, value in letter.headers if name not in ORIGIN]
        mark = ("replayed", f"{tp.topic}/{tp.partition}/{letter.offset}".encode())
        chosen.append((topic, letter.value, letter.key, partition, [*kept, mark]))
    return chosen


async def _send(producer: AIOKafkaProducer, chosen: list[Any]) -> None:
    sent = [
        await producer.send(topic, value=value, key=key, partition=partition, headers=headers)
        for topic, value, key, partition, headers in chosen
    ]
    for acknowledged in sent:
        await acknowledged


def origin(headers: Mapping[str, bytes]) -> tuple[str, int]:
    """Topic and partition of a letter's source; ("", 0) where its header is none of ours."""
    topic, _, rest = headers.get("source", b"").decode("utf-8", "replace").partition("/")
    partition = rest.partition("/")[0]
    return (topic, int(partition)) if partition.isascii() and partition.isdigit() else ("", 0)
