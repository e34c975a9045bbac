"""session id -> what was said in it, as far as the model is still told of it. Written by chat, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
import numpy as np

from core.messages import Speaker
from engine.table import Shard
from engine.timed import TimedTable

NEVER: Final = 253_402_300_799_999
"""The end of year 9999, ms since epoch."""
KEPT: Final = 0.75
"""Of the room, what `recent` keeps when it makes room: what follows what is dropped has to be computed anew, and that
had better be seldom."""
FIXED: Final = 1024
"""Tokens of a `fixed` window where nobody says another number."""
SHOWN: Final = 1000
"""Characters of what was said that views show."""


class Utterance(msgspec.Struct, omit_defaults=True):
    """One thing that was said."""

    role: Speaker
    text: str
    tokens: bytes
    """As the model's template writes it, of a reply those that the model sampled: uint32, little-endian."""

    @property
    def count(self) -> int:
        """Its tokens."""
        return len(self.tokens) // 4


class Turn(msgspec.Struct, omit_defaults=True):
    """A message and what was replied; windows drop it whole."""

    message: str
    """The message's id; empty where only the client knew of it."""
    ts: int
    """Event time, ms since epoch."""
    said: list[Utterance]
    pinned: bool = False

    @property
    def count(self) -> int:
        """Its tokens."""
        return sum(one.count for one in self.said)


class Context(msgspec.Struct, omit_defaults=True):
    """What a session's next prompt is made of."""

    ts: int
    """Event time of its newest message, ms since epoch."""
    ttl_ms: int | None
    """Event time of silence that ends it."""
    tokenizer: str
    """sha256 of what made the tokens: with another one they mean nothing."""
    turns: list[Turn]
    dropped: int = 0
    """Turns of the session that the window has dropped."""

    @property
    def ends(self) -> int:
        """Event time after which it is forgotten."""
        return NEVER if self.ttl_ms is None else min(NEVER, self.ts + self.ttl_ms)

    @property
    def count(self) -> int:
        """Its tokens."""
        return sum(turn.count for turn in self.turns)


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as they are stored."""
    return np.asarray(tokens, "<u4").tobytes()


def unpacked(raw: bytes) -> list[int]:
    """Tokens as they were."""
    tokens: list[int] = np.frombuffer(raw, "<u4").tolist()
    return tokens


# -- windows: which turns stay ----------------------------------------------------------------------------------------

Window = Callable[[Sequence[Turn], int], list[Turn]]
"""Turns, oldest first, and the tokens that there is room for -> those that stay, in their order. Pinned ones always do:
where they alone are too many it is the caller who refuses."""


def recent(turns: Sequence[Turn], room: int) -> list[Turn]:
    """All of them while they fit. When they don't, the oldest go until what is left has KEPT of the room."""
    total = sum(turn.count for turn in turns)
    if total <= room:
        return list(turns)
    left = []
    for turn in turns:
        if turn.pinned or total <= KEPT * room:
            left.append(turn)
        else:
            total -= turn.count
    return left


def fixed(turns: Sequence[Turn], room: int) -> list[Turn]:
    """Whole turns from the newest back while they fit, stopping at the first that does not."""
    left = room - sum(turn.count for turn in turns if turn.pinned)

    def fits(turn: Turn) -> bool:
        nonlocal left
        left -= turn.count
        return left >= 0

    kept = set(map(id, takewhile(fits, (turn for turn in reversed(turns) if not turn.pinned))))
    return [turn for turn in turns if turn.pinned or id(turn) in kept]


WINDOWS: Final[Mapping[str, Window]] = {"recent": recent, "fixed": fixed}
"""By the setting chat_window. One that folds the oldest turns into a summary, or picks them by what they are about, is
another function here, which may be given more than counts."""


class Contexts(TimedTable[str, Context]):
    """A context is forgotten when its session has been silent for its time to live, in event time."""

    name = "contexts"

    def due(self, value: Context) -> int:
        return value.ends + 1

    def fire(self, key: str, at: int) -> None:
        """Forgets it."""
        del self[key]

    def alive(self, session: str, ts: int) -> Context | None:
        """The context that a message of that time finds."""
        found = self.get(session)
        return None if found is None or ts > found.ends else found

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: who said what, and how many tokens that is."""
        context = self.decode(raw)
        return {
            "ts": context.ts,
            "ttl_s": None if context.ttl_ms is None else context.ttl_ms / 1e3,
            "tokens": context.count,
            "dropped": context.dropped,
            "tokenizer": context.tokenizer,
            "turns": [
                {
                    "message": turn.message,
                    "ts": turn.ts,
                    "tokens": turn.count,
                    "pinned": turn.pinned,
                    "said": [{"role": one.role, "text": one.text[:SHOWN], "tokens": one.count} for one in turn.said],
                }
                for turn in context.turns
            ],
        }


contexts = Contexts()
