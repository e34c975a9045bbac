"""What graphs over tokens are fed: texts of similar length together, padded, as the types that the graph takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import ManifestError
from models.engine import Array

if TYPE_CHECKING:
    from tokenizers import Encoding

BATCH: Final = 8
"""Texts of one run: more of them on one thread gain nothing, and wait longer for the longest."""
LOOSE: Final = 1.3
"""By how much the longest text of a run may be longer than its shortest: padding is computed too."""
MASK: Final = "attention_mask"
IDS: Final = "input_ids"
TYPES: Final = "token_type_ids"


class Run(NamedTuple):
    """One run of a graph."""

    rows: list[int]
    """Which of the texts."""
    feed: dict[str, Array]
    """Input -> (texts, tokens)."""
    mask: NDArray[np.int64]
    """(texts, tokens), 1 where a token is."""


class Feed:
    """One session's."""

    def __init__(self, session: Any, who: str) -> None:
        """Raises ManifestError for a graph that wants something else than tokens."""
        known = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
        self._types: dict[str, Any] = {given.name: known.get(given.type) for given in session.get_inputs()}
        odd = [name for name, kind in self._types.items() if kind is None or name not in (IDS, MASK, TYPES)]
        if odd:
            raise ManifestError(f"{who}: the graph wants {odd}; one for texts takes {IDS}, {MASK} and {TYPES}")

    def runs(self, encoded: Sequence[Encoding]) -> Iterator[Run]:
        """Every text, or pair of texts, is in one of them."""
        for rows in buckets([len(one.ids) for one in encoded]):
            yield self._run(rows, [encoded[row] for row in rows])

    def _run(self, rows: list[int], encoded: Sequence[Encoding]) -> Run:
        ids = np.zeros((len(encoded), max(1, *(len(one.ids) for one in encoded))), np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, one in enumerate(encoded):
            length = len(one.ids)
            ids[row, :length] = one.ids
            mask[row, :length] = 1
            types[row, :length] = one.type_ids
        given = {IDS: ids, MASK: mask, TYPES: types}
        return Run(rows, {name: given[name].astype(dtype) for name, dtype in self._types.items()}, mask)


def buckets(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of one run each: similar lengths together, at most BATCH of them. Every row is in one bucket."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    begin = 0
    for end in range(1, len(order) + 1):
        full = end - begin == BATCH
        if end == len(order) or full or lengths[order[end]] > LOOSE * max(8, lengths[order[begin]]):
            yield order[begin:end]
            begin = end
