"""What a decoder has done and what it is doing, as metrics tell it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Tick(NamedTuple):
    """One turn of the decoder's loop."""

    prefilled: int
    """Tokens of one session's chunk."""
    decoded: int
    """Sessions that got a token."""
    rows: int
    """Rows that the batch had; more than decoded where slots between them were idle."""
    seconds: float


@dataclass(slots=True)
class Figures:
    """Counters since the start, and the state now. Written by the decoder's thread; reading it elsewhere is safe."""

    turns: int = 0
    """Ended, however."""
    failed: int = 0
    cancelled: int = 0
    late: int = 0
    """Ended by their deadline."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    copied_tokens: int = 0
    restored_tokens: int = 0
    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    restore_s: float = 0.0
    saved_blocks: int = 0
    broken_blocks: int = 0
    """That were there, but weren't whole."""
    evicted: int = 0
    """Idle sessions whose slot another one needed."""
    shifts: int = 0
    """Times that what stood behind a piece of a context was moved up, and not computed;"""
    shifted_tokens: int = 0
    """tokens of prompts that are approximate for that."""
    moved: int = 0
    """Sessions that changed their slot so that a batch has no holes."""
    waiting: int = 0
    active: int = 0
    resident: int = 0
    """Sessions with a slot, active or idle."""
    held_tokens: int = 0
    """Tokens of KV in memory."""
    ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=256))
    """The newest. Elsewhere, take list(ticks) first."""
