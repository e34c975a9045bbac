"""Records of the topic `passages`, as tests write them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from core.events import Document
from models.knowledge.library import Library, Record
from models.knowledge.passage import Passage
from models.knowledge.reading import content_of
from models.knowledge.record import WIRE, Announced, Content, Key, encode

EMBEDDER = "e1"


class Topic:
    """What one partition of it holds. Vectors are by a toy embedder: what a text's letters are."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.records: list[Record] = []

    def put(self, key: Key, value: bytes | None) -> None:
        self.records.append(Record(self.partition, len(self.records), key.encode(), value))

    def announce(self, document: Document, born: int = 0) -> Announced:
        told = Announced(
            born=born,
            revision=len(self.records),
            content=content_of(document),
            size=len(document.text),
            at=1000 + len(self.records),
            title=document.title,
            url=document.url,
            tags=document.tags,
            tenant=document.tenant,
        )
        self.put(Key(document.id), encode(told))
        return told

    def make(
        self, document: Document, texts: Iterable[str], born: int = 0, embedder: str = EMBEDDER, parts: int = 1
    ) -> None:
        passages = [Passage((), text, 0, len(text)) for text in texts]
        size = -(-len(passages) // parts)
        for part in range(parts):
            some = passages[part * size : (part + 1) * size]
            made = Content(
                born=born,
                content=content_of(document),
                embedder=embedder,
                part=part,
                parts=parts,
                passages=some,
                vectors=np.array([vector(p.embedded(document.title), embedder) for p in some], WIRE).tobytes(),
            )
            self.put(Key(document.id, part), encode(made))

    def add(self, name: str, *texts: str, tenant: str | None = None, tags: tuple[str, ...] = (), born: int = 0) -> None:
        document = Document(name, "\n\n".join(texts), tenant=tenant, tags=tags)
        self.announce(document, born)
        self.make(document, texts, born)

    def delete(self, name: str) -> None:
        self.put(Key(name), None)


def vector(text: str, embedder: str = EMBEDDER) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """(32,), of length 1."""
    counts = np.zeros(32, np.float32)
    for sign in text.lower():
        counts[(ord(sign) + len(embedder)) % 32] += 1
    counts += 0.01
    return counts / np.linalg.norm(counts)


def apply(library: Library, *topics: Topic) -> Library:
    """All of their records."""
    for topic in topics:
        library.apply(topic.records)
    return library
