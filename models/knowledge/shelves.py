"""All vectors of a library: a shelf for each tenant and embedder, so that a search touches nobody else's."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.knowledge.database import mark
from models.knowledge.record import WIRE
from models.knowledge.shelf import Near, Shelf

log = logging.getLogger(__name__)

CHUNK: Final = 10_000
"""Vectors that are read at a time."""
GRAPH: Final = "graph-"
"""What the names of their files begin with."""


class Changes:
    """What a step does to the shelves, once the disk has it."""

    def __init__(self) -> None:
        self.count = 0
        self.tenants: set[str | None] = set()
        self.removed: dict[tuple[str | None, str], set[int]] = defaultdict(set)
        self.added: dict[tuple[str | None, str], list[tuple[int, int, int, bytes]]] = defaultdict(list)

    def put(self, tenant: str | None, embedder: str, document: int, passage: int, key: int, vector: bytes) -> None:
        self.added[tenant, embedder].append((document, passage, key, vector))

    def remove(self, tenant: str | None, embedder: str | None, passage: int) -> None:
        place = (tenant, embedder or "")
        self.removed[place].add(passage)
        if place in self.added:
            self.added[place] = [put for put in self.added[place] if put[1] != passage]


class Shelves:
    """Searched by one thread while another one changes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shelves: dict[tuple[str | None, str], Shelf] = {}

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    @property
    def bytes(self) -> int:
        """Of memory."""
        return sum(shelf.bytes for shelf in self._shelves.values())

    def clear(self) -> None:
        """Nothing is on them."""
        with self._lock:
            self._shelves.clear()

    def fill(self, db: sqlite3.Connection) -> None:
        """With all that the library's file has. Raises ValueError for a vector that has another size than the others of
        its embedder."""
        asked = "SELECT DISTINCT d.tenant, d.embedder FROM documents d WHERE d.embedder != ''"
        for tenant, embedder in db.execute(asked).fetchall():
            rows = db.execute(
                "SELECT p.id, p.key, p.document, p.vector FROM passages p JOIN documents d ON d.id = p.document "
                "WHERE d.tenant IS ? AND d.embedder = ? AND p.vector IS NOT NULL ORDER BY p.id",
                (tenant, embedder),
            )
            while chunk := rows.fetchmany(CHUNK):
                ids, keys, documents, raw = zip(*chunk, strict=True)
                vectors = np.frombuffer(b"".join(raw), WIRE).reshape(len(chunk), -1)
                shelf = self._shelf(tenant, embedder, vectors.shape[1])
                numbers = [np.array(column, np.int64) for column in (ids, keys, documents)]
                shelf.fill(numbers[0], numbers[1], numbers[2], vectors)

    # -- graphs -------------------------------------------------------------------------------------------------------

    def index(self, count: int) -> int:
        """Adds so many passages to graphs that lack some. Returns how many are lacking then."""
        with self._lock:
            left = 0
            for shelf in self._shelves.values():
                left += shelf.index(0 if left else count)
            return left

    def save(self, folder: Path, positions: Mapping[int, int], least: int) -> None:
        """Graphs with so many changes that their files lack. Searches wait for copies in memory, not for the disk."""
        with self._lock:
            images = [(path, shelf.image()) for path, shelf in self._files(folder) if shelf.unsaved >= least]
        for path, image in images:
            if image is not None:
                image.write(path, positions)

    def load(self, folder: Path, positions: Mapping[int, int]) -> None:
        """The graphs that were saved; one that is none of ours is made anew, and the log says why."""
        known = dict(self._files(folder))
        for path in folder.glob(f"{GRAPH}*"):
            try:
                if path in known:
                    known[path].load(path, positions)
                    continue
            except (ValueError, OSError) as error:
                log.warning("%s is built anew: %s", path, error)
            path.unlink(missing_ok=True)

    def _files(self, folder: Path) -> Iterator[tuple[Path, Shelf]]:
        for (tenant, embedder), shelf in self._shelves.items():
            name = blake2b(f"{mark(tenant)}/{embedder}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
            yield folder / f"{GRAPH}{name}", shelf

    def rearrange(self, changes: Changes) -> None:
        """As the file is by now."""
        with self._lock:
            for (tenant, embedder), ids in changes.removed.items():
                if (shelf := self._shelves.get((tenant, embedder))) is not None:
                    shelf.remove(ids)
                    if not len(shelf):
                        del self._shelves[tenant, embedder]
            for (tenant, embedder), puts in changes.added.items():
                for document, one, key, raw in puts:
                    vector = np.frombuffer(raw, WIRE)
                    self._shelf(tenant, embedder, len(vector)).put(document, [one], [key], vector[None])

    def nearest(
        self,
        tenant: str | None,
        embedder: str,
        vector: NDArray[np.float32],
        count: int,
        documents: NDArray[np.int64] | None,
    ) -> list[Near]:
        """As Shelf.nearest, on the shelf of a tenant."""
        with self._lock:
            shelf = self._shelves.get((tenant, embedder))
            if shelf is None or shelf.size != len(vector):
                return []
            return shelf.nearest(vector, count, documents)

    def _shelf(self, tenant: str | None, embedder: str, size: int) -> Shelf:
        shelf = self._shelves.get((tenant, embedder))
        if shelf is None:
            shelf = self._shelves[tenant, embedder] = Shelf(size)
        if shelf.size != size:
            raise ValueError(f"a vector has {size} components, others of its embedder {shelf.size}")
        return shelf
