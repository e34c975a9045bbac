"""Text to tokens and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer as Tokens
from tokenizers.decoders import DecodeStream

from core.errors import ManifestError


class Tokenizer:
    """A version's tokenizer.json."""

    def __init__(self, path: Path, end_tokens: Iterable[int], where: str) -> None:
        """Raises ManifestError, which begins with `where`, for a file that can't be read."""
        try:
            raw = path.read_bytes()
            self._tokens = Tokens.from_str(raw.decode())
        except Exception as error:  # tokenizers raises plain Exception
            raise ManifestError(f"{where}: {error}") from error
        self.sha256: Final = hashlib.sha256(raw).hexdigest()
        self._tokens.no_padding()
        self._tokens.no_truncation()
        self._tokens.encode_special_tokens = True  # what is written is text
        added = self._tokens.get_added_tokens_decoder()
        self.special: Final = {token.content: number for number, token in added.items() if token.special}
        """Text -> token, of those that only templates write."""
        self.end_tokens: Final = frozenset(end_tokens)

    def encode(self, text: str) -> list[int]:
        """Special tokens written in the text are text."""
        return list(self._tokens.encode(_sound(text), add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Without special tokens."""
        return str(self._tokens.decode(list(tokens), skip_special_tokens=True))

    def text_of(self, token: int) -> str:
        """As the vocabulary has it. Raises ManifestError for a token that it hasn't."""
        text = self._tokens.id_to_token(token)
        if text is None:
            raise ManifestError(f"token {token} isn't in the tokenizer's vocabulary")
        return str(text)

    def stream(self) -> TextStream:
        """Decodes one reply token by token."""
        return TextStream(self._tokens)


class TextStream:
    """A reply's text, as its tokens come. Characters whose last bytes never come are left out."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._decoding = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """What is certain now: often a word, sometimes nothing."""
        try:
            return self._decoding.step(self._tokens, token) or ""
        except Exception:  # bytes that no character begins with: it has lost its place
            self._decoding = DecodeStream(skip_special_tokens=True)
            return ""


def _sound(text: str) -> str:
    """Halves of surrogate pairs, which JSON can bring, are no text."""
    return text.encode("utf-8", "replace").decode()
