"""What a session asks of a decoder, and what comes back: no record, no topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from models.decoder.adapter import Adapter


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen. The defaults are greedy; a version's own are `Decoder.defaults`."""

    temperature: float = 0.0
    """0 takes the likeliest token, and the rest of these but the penalty has no effect then."""
    top_p: float = 1.0
    """Of the likeliest tokens, as many as together reach this probability."""
    top_k: int = 0
    """At most so many of the likeliest; 0: all."""
    min_p: float = 0.0
    """Only tokens at least this times as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative, of tokens that the context has already."""
    seed: int | None = None
    """The same seed and context give the same reply in fp32. None: one is drawn, and told in Usage."""
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these; none of it is ever streamed."""
    max_tokens: int = 256
    """New tokens at most; fewer where the window ends."""
    schema: Mapping[str, Any] | None = None
    """A JSON schema: the reply is a value of it, unless it is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply to be made for a session."""

    session: str
    tokens: tuple[int, ...]
    """The whole context, from Decoder.render: what of it the session's KV holds already isn't computed again."""
    sampling: Sampling
    given: tuple[int, ...] = ()
    """Tokens of the reply that are recorded already: they are taken as they are, and what is streamed begins behind
    them. They count as new tokens in every limit."""
    priority: int = 0
    """Larger ones are admitted and prefilled first."""
    within_s: float | None = None
    """Seconds from submit after which the turn ends as it is."""
    adapter: Adapter | None = None
    """What changes the model for this turn. Keys and values that were made with another aren't used."""
    exact: bool = False
    """Keeps the session's idle KV in fp32, so that a restored session goes on bit by bit as if it had stayed."""
    shifts: bool = False
    """Where the context is what the session's slot holds with a piece cut out, what stands behind the piece is moved up
    and not computed: an approximation, since it was computed from the piece, too."""


class Finish(StrEnum):
    """Why a reply has ended."""

    STOP = "stop"
    """An end token, a stop string, or a value of the schema is complete."""
    LENGTH = "length"
    """max_tokens, or the window is full."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Piece(NamedTuple):
    """A part of a reply: what was sampled since the last one, and the text that it led to."""

    tokens: tuple[int, ...]
    """An end token is among them; text that may still become a stop string or a character comes with a later piece."""
    text: str
    """May be empty."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply took."""

    finish: Finish
    prompt: int
    """Tokens of the context."""
    cached: int
    """Of these, those whose KV was there: held, restored, or copied from another session."""
    new: int
    """Tokens sampled, those given included."""
    seed: int
    queued_s: float
    """From submit to the first tick that served it."""
    first_s: float
    """From submit to the first token; the whole time where there is none."""
    total_s: float
    restored: int = 0
    """Of the cached tokens, those that came from blocks."""
    copied: int = 0
    """Of the cached tokens, those copied from another session's slot."""
    shifted: int = 0
    """Of the cached tokens, those that were computed behind others than stand before them now."""
