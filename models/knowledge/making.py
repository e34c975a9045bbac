"""From a document to the records that make it findable: read, split, embedded a few passages at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.errors import DocumentError
from core.events import Document
from models.knowledge.passage import Count, Passage, split
from models.knowledge.reading import content_of, read
from models.knowledge.record import WIRE, Content

SHARE: Final = 0.6
"""Of the largest record, that a part of a document's content may have."""
MOST_PASSAGES: Final = 20_000
"""Of one document."""


class Making:
    """One document on its way to its passages. Belongs to one thread at a time."""

    def __init__(
        self, document: Document, born: int, embedder: str, count: Count, known: Mapping[bytes, bytes]
    ) -> None:
        """Reads and splits: tens of milliseconds for long ones.

        embedder: identity of the version that will make the vectors; empty: there will be none. known: vectors that
        are there already, by the passages' hashes. Raises DocumentError.
        """
        title, blocks = read(document)
        self.title = title
        # A passage that comes again is known by the same id: it would be found, and told, as often as it comes.
        first: dict[bytes, Passage] = {}
        for passage in split(title, blocks, count):
            first.setdefault(passage.hash(title), passage)
        self._hashes, self.passages = list(first), list(first.values())
        if len(self.passages) > MOST_PASSAGES:
            raise DocumentError(
                f"the document falls into {len(self.passages):,} passages; {MOST_PASSAGES:,} are allowed"
            )
        self._born, self._content, self._embedder = born, content_of(document), embedder
        self._own = None if document.title else title
        self._vectors = {hashed: known[hashed] for hashed in self._hashes if hashed in known} if embedder else {}
        self._missing = [
            (hashed, passage.embedded(title))
            for hashed, passage in first.items()
            if embedder and hashed not in self._vectors
        ]
        self._missing.sort(key=lambda one: -len(one[1]))  # those of one length together: the next is at the end
        self.reused = len(self._vectors)

    @property
    def left(self) -> int:
        """Passages that have still to be embedded."""
        return len(self._missing)

    def next(self, most: int, room: int) -> list[str]:
        """Texts to embed next: at most so many, and so many characters, but one at least."""
        texts: list[str] = []
        for _, text in reversed(self._missing[-most:]):
            if texts and len(text) + sum(map(len, texts)) > room:
                break
            texts.append(text)
        return texts[::-1]

    def put(self, vectors: NDArray[np.float32]) -> None:
        """The vectors of what next() gave, in that order. Raises DocumentError for what is no vector."""
        if not np.isfinite(vectors).all():
            raise DocumentError("the embedder gives something that is not finite for a passage")
        for (hashed, _), vector in zip(self._missing[-len(vectors) :], vectors, strict=True):
            self._vectors[hashed] = vector.astype(WIRE).tobytes()
        del self._missing[-len(vectors) :]

    def contents(self, max_record: int) -> list[Content]:
        """What is to be published: one record, or several where it would be larger than that allows."""
        groups = list(self._groups(SHARE * max_record)) or [range(0)]
        return [
            Content(
                born=self._born,
                content=self._content,
                embedder=self._embedder,
                part=part,
                parts=len(groups),
                title=self._own,
                passages=[self.passages[at] for at in group],
                vectors=b"".join(self._vectors[self._hashes[at]] for at in group) if self._embedder else b"",
            )
            for part, group in enumerate(groups)
        ]

    def _groups(self, room: float) -> Iterator[range]:
        begin, size = 0, 0
        for at, passage in enumerate(self.passages):
            bytes_ = _size(passage) + len(self._vectors.get(self._hashes[at], b""))
            if size and size + bytes_ > room:
                yield range(begin, at)
                begin, size = at, 0
            size += bytes_
        if size:
            yield range(begin, len(self.passages))


def failed(document: Document, born: int, embedder: str, error: Exception) -> Content:
    """What is published in the place of passages: there are none, and why."""
    words = str(error) if isinstance(error, DocumentError) else repr(error)
    return Content(born=born, content=content_of(document), embedder=embedder, error=words[:1000])


def _size(passage: Passage) -> int:
    texts: Sequence[str] = (passage.text, *passage.headings)
    return 64 + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
