"""How a question and a passage fall into a cross-encoder's tokens: the passage is cut, and never the question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.errors import RerankError
from models.embedder.tokens import LONGEST, tokenizer_of

if TYPE_CHECKING:
    from tokenizers import Encoding

ROOM: Final = 8
"""Tokens of a passage that there must be room for: fewer say nothing of it."""


class Pairs:
    """One tokenizer.json. Its own padding and truncation are those of a training and count for nothing."""

    def __init__(self, file: Path, most: int) -> None:
        """most: tokens of a pair, special ones included. Raises ManifestError."""
        self._cut, self._whole = tokenizer_of(file), tokenizer_of(file)
        self._cut.enable_truncation(most, strategy="only_second")
        self._characters = LONGEST * most
        self._most = most - self._whole.num_special_tokens_to_add(is_pair=True) - ROOM

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[Encoding]:
        """Each (question, passage) with special tokens and token types, the passage cut. Lets go of the GIL. Raises
        RerankError for a question that leaves no room for a passage."""
        questions = list(dict.fromkeys(question for question, _ in pairs))
        lengths = map(len, self._whole.encode_batch(questions, add_special_tokens=False))
        if (longest := max(lengths, default=0)) > self._most:
            raise RerankError(f"a question of {longest} tokens leaves no room for a passage: {self._most} are allowed")
        return list(self._cut.encode_batch([(one, passage[: self._characters]) for one, passage in pairs]))
