"""What a partition's messages have in hand, beside what is recorded of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.task import PartitionTask
from models.decoder.generation import Generation


@dataclass(slots=True)
class Room:
    """What a partition has in its hands since it was opened, or its unfinished work was given back."""

    task: PartitionTask
    epoch: int
    waiting: Counter[str] = field(default_factory=Counter)
    """Session -> its messages that wait or are answered."""
    refused: set[int] = field(default_factory=set)
    """Offsets of messages that their session has no room for."""
    unwanted: set[tuple[str, str]] = field(default_factory=set)
    """Session and id of messages that were cancelled before their turn."""
    made: dict[tuple[str, str], Generation] = field(default_factory=dict)
    """Session and id of the message -> the reply that is made."""

    def left(self, session: str) -> None:
        """One of a session's messages waits no longer."""
        self.waiting[session] -= 1
        if not self.waiting[session]:
            del self.waiting[session]
