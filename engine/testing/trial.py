"""What a test does with an application and sees of it, wherever it runs: events in, what is committed out."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast

from pydantic import ValidationError

from core.errors import SettingsError, UsageError
from core.settings import Settings
from core.topics import DEAD_LETTERS, LATE, TopicSpec
from engine.codec import codec_of
from engine.publisher import partition_of
from engine.table import RESERVED, K, KeyValueShard, Shard, Table, V

E = TypeVar("E")

SETTLE_S: Final = 30.0
"""Seconds that an application may need for what was sent."""


class Written(NamedTuple):
    """A record as it is on a topic."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Output(Generic[E]):
    """A committed record of a topic."""

    topic: str
    partition: int
    key: str | None
    value: E
    """Decoded as the topic says; None where the record deletes."""
    headers: Mapping[str, str]


class Given(Settings):
    """What a test says, and defaults: neither the environment nor .env of whoever runs it."""

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **others: Any) -> tuple[Any, ...]:  # type: ignore[override]
        """Arguments alone."""
        return (init_settings,)


class Trial(ABC):
    """An application under test. `async with` starts it, and leaves nothing behind.

    What outputs(), value() and the other reads tell is what was committed when settle() returned.
    """

    settings: Settings

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Starts the application."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops it."""

    @abstractmethod
    async def send(
        self,
        topic: TopicSpec[E],
        events: Iterable[E | bytes],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Sends events, which are worked on as they come; bytes are sent as they are, good or bad.

        key: of all of them; by default each event's own, the field that the topic is keyed by. at: the timestamp of
        their records, by default now. Raises UsageError where there is no key, and for a topic that the application
        doesn't have.
        """

    @abstractmethod
    async def settle(self, within_s: float = SETTLE_S) -> None:
        """Returns once all that was sent is worked on and committed. Raises TrialError where that takes longer."""

    @abstractmethod
    async def crash(self) -> None:
        """Ends the application without a last word, and starts it again: what isn't committed is gone, and done again.
        Where the broker has no transactions, outputs of unsettled work are repeated."""

    @abstractmethod
    async def deploy(self, model: str, version: str) -> None:
        """Makes a version in the model store (the setting model_store) answer. Raises TrialError where it can't."""

    # -- what is committed --------------------------------------------------------------------------------------------

    def outputs(self, topic: TopicSpec[E]) -> list[Output[E]]:
        """The records of a topic, in the order of each partition. Raises what the topic's type makes of bad ones."""
        decode = codec_of(topic.value).decode
        return [
            Output(
                topic.name,
                partition,
                None if record.key is None else _text(record.key),
                cast(E, None if record.value is None else decode(record.value)),
                {name: _text(raw or b"") for name, raw in record.headers},
            )
            for partition in range(self.settings.partitions)
            for record in self._records(topic, partition)
        ]

    def dead_letters(self) -> list[Output[bytes]]:
        """What could not be processed: raw bytes; the headers `error` and `message` say why."""
        return self.outputs(DEAD_LETTERS)

    def late(self) -> list[Output[bytes]]:
        """What came later than the allowed lateness, as it came."""
        return self.outputs(LATE)

    def value(self, table: Table[K, V], key: K) -> V | None:
        """A table's value, or None. Of tables that keep rows of numbers: what `GET /tables/TABLE/KEY` answers."""
        raw = table.encode_key(key)
        session = table.session(key)
        place = partition_of(session.encode() if isinstance(session, str) else session, self.settings.partitions)
        stored = self._stored(table, place).get(raw)
        return None if stored is None else self._decoded(table, place, raw, stored)

    def values(self, table: Table[K, V]) -> dict[K, V]:
        """All values of a table, by key."""
        return {
            table.decode_key(key): self._decoded(table, partition, key, raw)
            for partition in range(self.settings.partitions)
            for key, raw in sorted(self._stored(table, partition).items())
            if not key.startswith(RESERVED)
        }

    def _decoded(self, table: Table[K, V], partition: int, key: bytes, raw: bytes) -> V:
        shard = self._shard(table, partition)
        return table.decode(raw, key) if isinstance(shard, KeyValueShard) else cast(V, table.describe(shard, raw))

    @abstractmethod
    def _records(self, topic: TopicSpec[Any], partition: int) -> Iterable[Written]:
        """What is committed to a topic."""

    @abstractmethod
    def _stored(self, table: Table[Any, Any], partition: int) -> Mapping[bytes, bytes]:
        """What is committed of a table, keys of ours too."""

    @abstractmethod
    def _shard(self, table: Table[Any, Any], partition: int) -> Shard:
        """The table's part in a partition."""


def given(settings: Mapping[str, Any]) -> Settings:
    """The settings of a trial. Raises UsageError for a name that is none, SettingsError for a value that can't be."""
    for name in settings:
        if name not in Settings.model_fields:
            close = difflib.get_close_matches(name, list(Settings.model_fields), n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"{name} is not a setting (those of HOMUNCULUS_*, in lower case){hint}")
    try:
        return Given(**settings)
    except ValidationError as error:
        raise SettingsError("; ".join(f"{'_'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None


def encoded(topic: TopicSpec[E], events: Iterable[E | bytes], key: str | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of each event; None is a record without a value. Raises UsageError where an event has no key."""
    encode = codec_of(topic.value).encode
    for event in events:
        own = key if key is not None else getattr(event, topic.key, None)
        if not isinstance(own, str):
            what = "bytes have" if isinstance(event, bytes) else f"{type(event).__name__} has"
            raise UsageError(
                f"{topic.name} is keyed by {topic.key!r}, and {what} no such text: say it, send(..., key=...)"
            )
        yield own.encode(), event if event is None or isinstance(event, bytes) else encode(event)


def timestamp(at: datetime | None) -> int | None:
    """A time as records say it, ms since epoch."""
    return None if at is None else round(1e3 * at.timestamp())


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
