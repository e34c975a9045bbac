"""The vectors of one tenant, by one embedder: compared exactly, all of them or what a graph of very many proposes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.knowledge.graph import Graph, Image

ALIKE: Final = 1e-6
"""Cosines that differ by less are equal: their last bits depend on where in the matrix a row is."""
FIRST: Final = 64
"""Rows that a shelf begins with. It doubles while it is small, and grows by a quarter then."""
LARGE: Final = 30_000
"""Passages from which on a graph pays: to compare a question with as many takes 2.5 ms."""
PROPOSED: Final = 4
"""Times as many as are wanted are taken from the graph, and compared exactly."""
BEHIND: Final = 5_000
"""Passages that the graph may lack before all are compared: those that it lacks are compared with each question."""


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
        self._graph: Graph | None = None
        self._outside: set[int] = set()
        """Ids that the graph lacks; none while there is no graph."""
        self._changed = 0
        """Changes of the graph since it was saved."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes(self) -> int:
        """Of memory, without Python's share."""
        columns = self._matrix.nbytes + self._ids.nbytes + self._documents.nbytes + self._keys.nbytes
        return columns + (self._graph.bytes if self._graph is not None else 0)

    def put(self, document: int, ids: Sequence[int], keys: Sequence[int], vectors: NDArray[np.floating]) -> None:
        """Adds passages of a document, or gives them other vectors. vectors: (n, size), scaled here."""
        rows = np.asarray(vectors, np.float32)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        self._grow(len(self._rows) + len(ids))
        for one, key, vector in zip(ids, keys, rows, strict=True):
            row = self._rows.setdefault(one, len(self._rows))
            self._matrix[row], self._ids[row], self._keys[row], self._documents[row] = vector, one, key, document
        if self._graph is not None:
            self._graph.remove(ids)
            self._outside.update(ids)

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
        if self._graph is not None:
            self._graph.remove(ids)
            self._outside.difference_update(ids)
            self._changed += len(ids)
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
        alone. Of very many, with a few mistakes: what the graph proposes is compared exactly, what it doesn't isn't."""
        matrix, ids, keys = self._matrix[: len(self)], self._ids[: len(self)], self._keys[: len(self)]
        if documents is not None:
            rows = np.flatnonzero(np.isin(self._documents[: len(self)], documents))
            matrix, ids, keys = matrix[rows], ids[rows], keys[rows]
        elif self._graph is not None and len(self._outside) <= BEHIND:
            proposed = self._graph.candidates(vector, PROPOSED * count).tolist()
            rows = np.array([self._rows[one] for one in (*proposed, *self._outside)], np.int64)
            matrix, ids, keys = matrix[rows], ids[rows], keys[rows]
        cosines = matrix @ vector
        if len(cosines) > count:
            least = np.partition(cosines, -count)[-count] - 2 * ALIKE
            best = np.flatnonzero(cosines >= least)
            cosines, ids, keys = cosines[best], ids[best], keys[best]
        order = np.lexsort((keys, -np.round(cosines / ALIKE)))[:count]
        return [Near(int(ids[row]), float(cosines[row]), int(keys[row])) for row in order]

    # -- the graph ----------------------------------------------------------------------------------------------------

    def index(self, count: int) -> int:
        """Adds so many passages to the graph, where there are enough for one. Returns how many it lacks then."""
        if self._graph is None:
            if len(self) < LARGE:
                return 0
            self._graph, self._outside = Graph(self.size), set(self._rows)
        elif len(self) < LARGE // 2:
            self._graph, self._outside = None, set()
            return 0
        some = np.array(list(islice(self._outside, count)), np.int64)
        if len(some):
            self._graph.add(some, self._matrix[[self._rows[one] for one in some.tolist()]])
            self._outside.difference_update(some.tolist())
            self._changed += len(some)
        return len(self._outside)

    @property
    def unsaved(self) -> int:
        """Changes of the graph that its file lacks."""
        return self._changed

    def image(self) -> Image | None:
        """The graph as it is to be saved, where there is one."""
        if self._graph is None:
            return None
        self._changed = 0
        return self._graph.image(self._keys[[self._rows[one] for one in self._graph.ids.tolist()]])

    def load(self, path: Path, positions: Mapping[int, int]) -> None:
        """The graph that was saved, less what is no more; what it lacks is added by and by. Raises ValueError where it
        isn't of this shelf, OSError."""
        graph, keys = Graph.load(path, self.size, positions)
        ours = [(one, self._rows.get(one), key) for one, key in zip(graph.ids.tolist(), keys.tolist(), strict=True)]
        gone = [one for one, row, key in ours if row is None or self._keys[row] != key]
        if 2 * len(gone) > len(ours):
            raise ValueError(f"of its {len(ours)} passages {len(gone)} aren't there any more")
        graph.remove(gone)
        self._graph, self._outside = graph, {one for one in self._rows if one not in graph}
        self._changed = len(gone)

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
