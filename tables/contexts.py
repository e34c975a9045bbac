"""session id -> what was said in it, as far as the model is still told of it. Written by chat, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from core.messages import Speaker, Window
from engine.table import Shard
from engine.timed import TimedTable

NEVER: Final = 253_402_300_799_999
"""The end of year 9999, ms since epoch."""
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
    summary: bytes = b""
    """Where it is a summary: sha256 of the texts that it stands for."""
    vector: bytes = b""
    """What it is about: float16, little-endian, by the embedder that the context names."""

    @property
    def count(self) -> int:
        """Its tokens."""
        return sum(one.count for one in self.said)

    @property
    def folded(self) -> bool:
        """Whether it is a summary of turns that have gone."""
        return bool(self.summary)


class Context(msgspec.Struct, omit_defaults=True):
    """What a session's next prompt is made of, or chosen from."""

    ts: int
    """Event time of its newest message, ms since epoch."""
    ttl_ms: int | None
    """Event time of silence that ends it."""
    tokenizer: str
    """sha256 of what made the tokens: with another one they mean nothing."""
    turns: list[Turn]
    dropped: int = 0
    """Turns of the session that the window has dropped, or folded into a summary."""
    window: Window | None = None
    """The session's own window, and its tokens; None: as the settings say."""
    window_tokens: int | None = None
    sinks: bytes = b""
    """The first tokens of all, where a `sinks` window has dropped the turn that they were in."""
    embedder: str = ""
    """Identity of what made the turns' vectors: those of two can't be compared."""
    tenant: str | None = None
    """Whose: a message on behalf of another one finds nothing of it."""

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


class Contexts(TimedTable[str, Context]):
    """A context is forgotten when its session has been silent for its time to live, in event time."""

    name = "contexts"

    def due(self, value: Context) -> int:
        return value.ends + 1

    def fire(self, key: str, at: int) -> None:
        """Forgets it."""
        del self[key]

    def alive(self, session: str, ts: int, tenant: str | None) -> Context | None:
        """The context that a message of that time finds, on behalf of that tenant."""
        found = self.get(session)
        return None if found is None or ts > found.ends or found.tenant != tenant else found

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: who said what, and how many tokens that is."""
        context = self.decode(raw)
        return {
            "ts": context.ts,
            "ttl_s": None if context.ttl_ms is None else context.ttl_ms / 1e3,
            "tokens": context.count,
            "dropped": context.dropped,
            "window": context.window,
            "window_tokens": context.window_tokens,
            "tokenizer": context.tokenizer,
            "turns": [
                {
                    "message": turn.message,
                    "ts": turn.ts,
                    "tokens": turn.count,
                    "pinned": turn.pinned,
                    "summary": turn.folded,
                    "said": [{"role": one.role, "text": one.text[:SHOWN], "tokens": one.count} for one in turn.said],
                }
                for turn in context.turns
            ],
        }


contexts = Contexts()
