"""An approximate index of one shelf: HNSW, so that a question is compared with a few hundred passages of very many."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from usearch.index import Index

LINKS: Final = 16
"""Of a passage on each level; twice as many on the lowest. Malkov, Yashunin: Efficient and robust approximate nearest
neighbor search using HNSW graphs, 2016."""
WIDTH_ADDING: Final = 128
WIDTH_SEARCHING: Final = 256
"""Passages that are kept in sight while one is added, and while a question is asked."""
_FORMAT: Final = 1


class Image(NamedTuple):
    """A graph of one moment, to be written while it goes on."""

    size: int
    passages: int
    body: bytes

    def write(self, path: Path, positions: Mapping[int, int]) -> None:
        """positions: how far the topic is applied in it. The file is there as a whole, or not at all."""
        head = {"format": _FORMAT, "size": self.size, "count": self.passages, "hash": _hash(self.body)}
        told = {str(partition): at for partition, at in sorted(positions.items())}
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(json.dumps(head | {"positions": told}).encode() + b"\n")
            file.write(self.body)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)


class Graph:
    """Passages by their ids, as int8. What it finds are candidates: who asks compares them exactly. Deletions are real:
    what was removed is never found. Not for several threads."""

    def __init__(self, size: int) -> None:
        """size: components."""
        self.size = size
        self._index = _index(size)
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, one: int) -> bool:
        return one in self._ids

    @property
    def ids(self) -> NDArray[np.int64]:
        """Of all that it has."""
        return np.fromiter(self._ids, np.int64, len(self._ids))

    @property
    def bytes(self) -> int:
        """Of memory, about."""
        return int(self._index.memory_usage)

    def add(self, ids: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Passages that it hasn't. vectors: (n, size), of length 1. Half a millisecond each."""
        self._index.add(ids.astype(np.uint64), vectors, threads=1)
        self._ids.update(ids.tolist())

    def remove(self, ids: Iterable[int]) -> None:
        """Those that it has."""
        there = self._ids.intersection(ids)
        if there:
            self._index.remove(np.fromiter(there, np.uint64, len(there)), threads=1)
            self._ids -= there

    def candidates(self, vector: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Ids of those that are probably nearest, at most so many."""
        found = self._index.search(vector, min(count, len(self._ids)), threads=1)
        return np.asarray(found.keys).astype(np.int64)

    def image(self, keys: NDArray[np.int64]) -> Image:
        """All of it as bytes. keys: what the shelf has of its ids, in their order."""
        return Image(self.size, len(self), self.ids.tobytes() + keys.tobytes() + bytes(self._index.save() or b""))

    @classmethod
    def load(cls, path: Path, size: int, positions: Mapping[int, int]) -> tuple[Graph, NDArray[np.int64]]:
        """What was saved, and the keys that belonged to its ids. Raises ValueError where it is damaged, of another
        release, or of a library that had read farther than this one has; OSError."""
        with path.open("rb") as file:
            head, body = _head(file.readline()), file.read()
        if (head.get("format"), head.get("size")) != (_FORMAT, size):
            raise ValueError("another release has written it")
        if head.get("hash") != _hash(body):
            raise ValueError("it is damaged")
        if any(at > positions.get(int(partition), 0) for partition, at in head["positions"].items()):
            raise ValueError("the library has read less of the topic than it has")
        count = int(head["count"])
        ids, keys = np.frombuffer(body, np.int64, 2 * count).reshape(2, count)
        graph = cls(size)
        try:
            graph._index.load(body[16 * count :])
        except RuntimeError as error:
            raise ValueError(f"it can't be read: {error}") from error
        graph._ids = set(ids.tolist())
        if len(graph._index) != count:
            raise ValueError(f"it has {len(graph._index)} passages, and should have {count}")
        return graph, keys


def _index(size: int) -> Index:
    from usearch.index import Index  # most workers have no shelf that needs it

    return Index(
        ndim=size, metric="cos", dtype="i8", connectivity=LINKS, expansion_add=WIDTH_ADDING,
        expansion_search=WIDTH_SEARCHING,
    )  # fmt: skip


def _hash(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _head(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except ValueError:
        raise ValueError("it is damaged") from None
    if not isinstance(head, dict):
        raise ValueError("it is damaged")
    return head
