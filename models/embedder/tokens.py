"""How a text falls into an embedder's tokens: to be computed, and to be counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.errors import ManifestError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

LONGEST: Final = 16
"""Characters of a text that is looked at, for each token that counts: what lies beyond is cut anyway, and tokenizers
take seconds for megabytes."""


class Tokens:
    """One tokenizer.json. Its own padding and truncation are those of a training and count for nothing."""

    def __init__(self, file: Path, most: int) -> None:
        """most: tokens of a text, special ones included. Raises ManifestError."""
        self._cut, self._whole = tokenizer_of(file), tokenizer_of(file)
        self._cut.enable_truncation(most)
        self._characters = LONGEST * most
        self.special = self._whole.num_special_tokens_to_add(is_pair=False)
        """Tokens that every text has beside its own."""

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Each text with special tokens, cut. Lets go of the GIL."""
        return list(self._cut.encode_batch([text[: self._characters] for text in texts]))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, whole, without special ones. Lets go of the GIL."""
        return [len(one.ids) for one in self._whole.encode_batch(list(texts), add_special_tokens=False)]


def tokenizer_of(file: Path) -> Tokenizer:
    """Of a tokenizer.json, without padding and truncation. Raises ManifestError."""
    from tokenizers import Tokenizer  # most workers embed nothing

    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises Exception itself
        raise ManifestError(f"{file.name} is no tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
