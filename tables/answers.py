"""session and message -> what is answered: while it is made, how far it has come; then the reply. Written by chat."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from core.messages import Reply
from engine.batch import current_slice
from engine.table import Shard
from engine.timed import TimedTable

KEPT_MS: Final = 3_600_000
"""Event time for which a reply is kept: a message that comes again within it gets the same one."""


class Answer(msgspec.Struct, omit_defaults=True):
    """What there is of the answer to one message."""

    source: str
    """Where the message stands, e.g. messages/3/10."""
    ts: int
    """The message's event time, ms since epoch."""
    keep_until: int
    """Event time, ms since epoch."""
    identity: str = ""
    """Of the model version that makes it."""
    tokens: bytes = b""
    """What was sampled so far: uint32, little-endian."""
    text: str = ""
    """What of it is text that nothing can change any more."""
    ends: list[int] = []
    """Where the parts that were sent, or are about to be, end in the text."""
    worker: str = ""
    """Who makes it."""
    slot: int = -1
    """Where that worker has the session's attention state."""
    reply: Reply | None = None
    """The final one: from here on nothing is generated for this message any more."""
    told: bool = False
    """Whether the final reply has left with the commit that holds this."""
    tenant: str | None = None
    """Whose message: the same id on behalf of another one is another message."""


class Answers(TimedTable[str, Answer]):
    """Keys are LENGTH:SESSION/MESSAGE, with the session's length in characters: either may hold any character."""

    name = "answers"

    def place(self, session: str, message: str) -> str:
        """The key of a message's answer."""
        return f"{len(session)}:{session}/{message}"

    def session(self, key: str) -> str:
        length, _, rest = key.partition(":")
        return rest[: int(length)]

    def keys_of(self, session: str, shard: Shard) -> list[bytes]:
        return shard.keys_with(self.place(session, "").encode())

    def due(self, value: Answer) -> int:
        return value.keep_until

    def fire(self, key: str, at: int) -> None:
        """Forgets it, unless its message may still come again after a crash: then it is looked at later."""
        answer, firing = self[key], current_slice()
        topic, _, offset = answer.source.rsplit("/", 2)
        finished = firing.task.engine.tasks[firing.partition].positions()
        if int(offset) >= finished.get(TopicPartition(topic, firing.partition), 0):
            self[key] = msgspec.structs.replace(answer, keep_until=at + KEPT_MS)
        else:
            del self[key]

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: without tokens."""
        answer = self.decode(raw)
        shown = {
            "source": answer.source,
            "ts": answer.ts,
            "worker": answer.worker,
            "tokens": len(answer.tokens) // 4,
            "text": answer.text,
            "reply": answer.reply,
        }
        return msgspec.to_builtins({name: value for name, value in shown.items() if value is not None})


answers = Answers()
