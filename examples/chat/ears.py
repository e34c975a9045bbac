"""What is read of `replies`: parts as they come, finals as they count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from core.messages import Reply
from core.topics import REPLIES
from engine.codec import codec_of


class Ears:
    """All replies of a demo's topic, from the first."""

    def __init__(self, options: dict[str, Any], prefix: str, partitions: int, heard: Callable[[Reply], None]) -> None:
        """heard: called with what is new."""
        self._topics = [TopicPartition(prefix + REPLIES.name, partition) for partition in range(partitions)]
        self._options = options
        self._decode = codec_of(Reply).decode
        self._heard = heard
        self.texts: dict[str, set[str]] = {}
        """Id of a record -> the texts that it was told with: one, if all is well."""
        self.finals: dict[str, Reply] = {}
        """Message -> its final reply."""
        self.parts: dict[str, dict[int, str]] = {}
        """Message -> its parts by their number."""

    async def listen(self) -> None:
        """For ever."""
        async with AIOKafkaConsumer(**self._options, isolation_level="read_committed") as consumer:
            consumer.assign(self._topics)
            await consumer.seek_to_beginning()
            while True:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        self._take(self._decode(record.value or b""))

    def _take(self, reply: Reply) -> None:
        self.texts.setdefault(reply.id, set()).add(reply.text)
        new = reply.message_id not in self.finals
        if reply.final:
            self.finals.setdefault(reply.message_id, reply)
        else:
            known = self.parts.setdefault(reply.message_id, {})
            new &= reply.seq not in known
            known[reply.seq] = reply.text
        if new:
            self._heard(reply)

    def whole(self, message: str) -> bool:
        """Whether the parts of a message are its final reply."""
        parts = self.parts.get(message, {})
        return "".join(parts[seq] for seq in sorted(parts)) == self.finals[message].text
