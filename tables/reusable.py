"""What an answer depends on, as one hash -> the message that was answered so. Written by chat: answers are given again
by the exact rule alone (models/knowledge/reuse.py)."""

from __future__ import annotations

from typing import Final

import msgspec

from core.messages import Reply
from engine.table import Shard
from engine.timed import TimedTable
from tables.answers import KEPT_MS, Answer, answers


class Reusable(msgspec.Struct):
    """An answer that may be given again."""

    place: str
    """Its key in the table `answers` of the same partition: what is erased there is nowhere else."""
    source: str
    """Where its message stands: another one may have taken the place since."""
    keep_until: int
    """Event time, ms since epoch."""


WHOLE: Final = ("stop", "length")
"""Answers that were not cut short by anybody."""


class ReusableAnswers(TimedTable[str, Reusable]):
    """Keys are models.knowledge.reuse.answer_key in hex: sessions of a partition share what they have in common."""

    name = "reusable"
    of_sessions = False

    def note(self, key: str, place: str, source: str, ts: int) -> None:
        """A message was answered, at that event time."""
        self[key] = Reusable(place, source, ts + KEPT_MS)

    def find(self, key: str) -> tuple[Answer, Reply] | None:
        """The answer that was given for the same reasons, if it is still kept."""
        found = self.get(key)
        answer = None if found is None else answers.get(found.place)
        if found is None or answer is None or answer.source != found.source:
            return None
        if answer.reply is None or answer.reply.finish not in WHOLE:
            return None
        return answer, answer.reply

    def due(self, value: Reusable) -> int:
        return value.keep_until

    def fire(self, key: str, at: int) -> None:
        """Forgets it."""
        del self[key]

    def keys_of(self, session: str, shard: Shard) -> list[bytes]:
        """Those that name a message of the session; all are looked at."""
        begin = answers.place(session, "")
        return [key for key, raw in shard.walk(b"") if self.decode(raw, key).place.startswith(begin)]


reusable = ReusableAnswers()
