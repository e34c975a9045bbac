"""What the topic `passages` holds: that a document is there, and what was made of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.knowledge.passage import Passage

_PART: Final = b"\xff"
"""Between a document's id and the number of a part: no UTF-8 has it."""
WIRE: Final = np.dtype("<f2")
"""Of vectors on the topic and on disk: half precision moves a cosine by less than .001."""


class Announced(msgspec.Struct, omit_defaults=True):
    """A document as its owner has taken it, in the transaction of its record; a tombstone where it was deleted. What
    is found of a document is what its newest announcement allows."""

    born: int
    """Offset of the record that made it, since it was last deleted: what was made of it before then is void."""
    revision: int
    """Offset of its newest record."""
    content: str
    """Hash of what its passages are made of."""
    size: int
    """Characters."""
    at: int
    """ms since epoch: when that record was written."""
    title: str | None = None
    url: str | None = None
    tags: tuple[str, ...] = ()
    tenant: str | None = None


class Content(msgspec.Struct, omit_defaults=True):
    """What was made of a document, or one part of that. Made beside the transactions: it may come late, twice, or from
    a former owner, and counts only while it is what the announcement asks for."""

    born: int
    content: str
    embedder: str = ""
    """Identity of the version that made the vectors; empty where there was none."""
    part: int = 0
    parts: int = 1
    title: str | None = None
    """The page's own, where the document gives none."""
    passages: list[Passage] = []
    vectors: bytes = b""
    """(passages, size) of WIRE."""
    error: str | None = None
    """Why there is nothing to find in it."""

    def matrix(self) -> NDArray[np.float16] | None:
        """(passages, size), or None without vectors. Raises ValueError where they don't fit the passages."""
        if not self.vectors or not self.passages:
            return None
        return np.frombuffer(self.vectors, WIRE).reshape(len(self.passages), -1)


class Key(NamedTuple):
    """Of a record: a document, or a part of what was made of it."""

    document: str
    part: int | None = None

    def encode(self) -> bytes:
        """As it stands on the topic."""
        name = self.document.encode()
        return name if self.part is None else name + _PART + self.part.to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes) -> Key:
        """Raises ValueError for what is none."""
        name, sign, part = raw.partition(_PART)
        if sign and len(part) != 4:
            raise ValueError("a part's number has four bytes")
        return cls(name.decode(), int.from_bytes(part, "big") if sign else None)


encode: Final = msgspec.msgpack.Encoder().encode
announced: Final = msgspec.msgpack.Decoder(Announced).decode
content: Final = msgspec.msgpack.Decoder(Content).decode
