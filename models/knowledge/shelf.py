"""The vectors of one tenant, by one embedder: searched as a whole, and exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIKE: Final = 1e-6
"""Cosines that differ by less are equal: their last bits depend on where in the matrix a row is."""
FIRST: Final = 64
"""Rows that a shelf begins with. It doubles while it is small, and grows by a quarter then."""


class Near(NamedTuple):
    """A passage and how near it is."""

    id: int
    cosine: float
    key: int
    """What orders equally near ones, on every worker alike."""


class Shelf:
    """Rows are float32 of length 1. What is removed is gone: the last row takes its place. Not for several threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._matrix = np.empty((FIRST, size), np.float32)
        self._ids = np.empty(FIRST, np.int64)
        self._documents = np.empty(FIRST, np.int64)
        self._keys = np.empty(FIRST, np.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes(self) -> int:
        """Of memory, without Python's share."""
        return self._matrix.nbytes + self._ids.nbytes + self._documents.nbytes + self._keys.nbytes

    def put(self, document: int, ids: Sequence[int], keys: Sequence[int], vectors: NDArray[np.floating]) -> None:
        """Adds passages of a document, or gives them other vectors. vectors: (n, size), scaled here."""
        rows = np.asarray(vectors, np.float32)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        self._grow(len(self._rows) + len(ids))
        for one, key, vector in zip(ids, keys, rows, strict=True):
            row = self._rows.setdefault(one, len(self._rows))
            self._matrix[row], self._ids[row], self._keys[row], self._documents[row] = vector, one, key, document

    def fill(
        self,
        ids: NDArray[np.int64],
        keys: NDArray[np.int64],
        documents: NDArray[np.int64],
        vectors: NDArray[np.floating],
    ) -> None:
        """As put(), for very many that are new."""
        begin, end = len(self._rows), len(self._rows) + len(ids)
        self._grow(end)
        block = self._matrix[begin:end]
        block[:] = vectors
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
        self._ids[begin:end], self._keys[begin:end], self._documents[begin:end] = ids, keys, documents
        self._rows.update(zip(ids.tolist(), range(begin, end), strict=True))

    def remove(self, ids: Collection[int]) -> None:
        """Those that are there."""
        for one in ids:
            row = self._rows.pop(one, None)
            last = len(self._rows)
            if row is not None and row != last:
                self._matrix[row] = self._matrix[last]
                for column in (self._ids, self._keys, self._documents):
                    column[row] = column[last]
                self._rows[int(self._ids[row])] = row

    def nearest(
        self, vector: NDArray[np.float32], count: int, documents: NDArray[np.int64] | None = None
    ) -> list[Near]:
        """The nearest passages, the nearest first. vector: (size,), of length 1. documents: among those of these
        alone."""
        matrix, ids, keys = self._matrix[: len(self)], self._ids[: len(self)], self._keys[: len(self)]
        if documents is not None:
            rows = np.flatnonzero(np.isin(self._documents[: len(self)], documents))
            matrix, ids, keys = matrix[rows], ids[rows], keys[rows]
        cosines = matrix @ vector
        if len(cosines) > count:
            least = np.partition(cosines, -count)[-count] - 2 * ALIKE
            best = np.flatnonzero(cosines >= least)
            cosines, ids, keys = cosines[best], ids[best], keys[best]
        order = np.lexsort((keys, -np.round(cosines / ALIKE)))[:count]
        return [Near(int(ids[row]), float(cosines[row]), int(keys[row])) for row in order]

    def _grow(self, wanted: int) -> None:
        have = len(self._ids)
        if wanted <= have:
            return
        rows = max(wanted, have + have // 4, 2 * min(have, 1024))
        matrix = np.empty((rows, self.size), np.float32)
        matrix[: len(self)] = self._matrix[: len(self)]
        self._matrix = matrix
        self._ids = np.resize(self._ids, rows)
        self._keys = np.resize(self._keys, rows)
        self._documents = np.resize(self._documents, rows)
