"""A session's KV in blocks of 64 tokens, each known by the model and by all tokens up to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

BLOCK: Final = 64
"""Tokens of a block. Whole ones are kept alone: the rest is prefilled with the next turn."""


class Blocks(Protocol):
    """Keeps bytes under a key; may forget any of them at any time. Called from the decoder's thread alone."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The blocks in the order of the keys, None for those that aren't there or can't be read. Never raises."""

    def put(self, blocks: Mapping[bytes, bytes], session: str) -> None:
        """Keeps blocks; what can't be kept is left out with a warning. session: whose they are first, for forget()."""

    def forget(self, session: str) -> None:
        """Deletes what was put for a session."""

    def has(self, keys: Iterable[bytes]) -> list[bool]:
        """Which of the keys are there, as far as is known without reading them."""
