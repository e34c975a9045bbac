"""The newest records of a topic, read outside the group while somebody wants to see them."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from core.errors import RightsError
from core.topics import TopicSpec
from engine import rights
from engine.admission import REFUSED, in_words
from engine.codec import codec_of
from engine.connection import Connection
from engine.onlooker import onlooking

log = logging.getLogger(__name__)

E = TypeVar("E")

RETRY_S: Final = 2.0
REFUSED_S: Final = 60.0
"""Seconds until a topic that we may not read is asked for again."""


class Told(NamedTuple, Generic[E]):
    """A record's value, and when the broker was given it."""

    at: int
    """ms since epoch."""
    value: E


class Tail(Generic[E]):
    """Keeps the newest values of all partitions of a topic together. Nothing depends on it: what can't be decoded is
    left out, and where the topic can't be read, `trouble` says why."""

    def __init__(self, connection: Connection, topic: TopicSpec[E], most: int) -> None:
        self._connection = connection
        self._topic = topic
        self._most = most
        self._decode = codec_of(topic.value).decode
        self._positions: dict[TopicPartition, int] = {}
        self.values: list[Told[E]] = []
        """Newest first."""
        self.version = 0
        """Another number after each change of what is known."""
        self.trouble: str | None = None

    async def run(self) -> None:
        """Reads until it is cancelled."""
        while True:
            try:
                await self._read()
            except (RightsError, *REFUSED) as error:
                self._say(in_words(error) if isinstance(error, KafkaError) else str(error))
                await asyncio.sleep(REFUSED_S)
            except (KafkaError, OSError) as error:
                self._say(f"{self._topic.name} can't be read at the moment ({type(error).__name__})")
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        name = self._connection.settings.topic_prefix + self._topic.name
        # Asked first: a topic that we may not read looks to the consumer like one that isn't there.
        await rights.check(self._connection, rights.Needed({name: frozenset({rights.READ})}))
        async with onlooking(self._connection, self._topic, "latest") as (consumer, begins, ends):
            for tp, end in ends.items():
                # Twice as many offsets: each transaction's marker takes one.
                newest = max(begins[tp], end - 2 * self._most)
                consumer.seek(tp, max(newest, self._positions.get(tp, 0)))
            self._say(None)
            while True:
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    self._take([(record.timestamp, record.value) for record in records])
                    self._positions[tp] = records[-1].offset + 1

    def _take(self, records: list[tuple[int, bytes | None]]) -> None:
        told = []
        for at, raw in records:
            try:
                told.append(Told(at, self._decode(raw or b"")))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                log.debug("A record of %s is not ours: left out", self._topic.name)
        if told:
            self.values = sorted([*self.values, *told], key=lambda one: one.at, reverse=True)[: self._most]
            self.version += 1

    def _say(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self.version += 1
