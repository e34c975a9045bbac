"""The kinds of values that a version's features may have, as numbers: what windows count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.reference import FeatureReference, NumberReference

MISSING: Final = 0
BEYOND: Final = 1
"""A number below the smallest knot; a category without a name. Above the largest knot is a number's last cell."""
FIRST: Final = 2
"""Up to the smallest knot, or the first category."""

Counts = NDArray[np.int64]


class Column:
    """One feature: cells as above, then one a knot (values up to it) and one above, or one a category."""

    def __init__(self, name: str, reference: FeatureReference, at: int) -> None:
        """at: its first cell among those of all features."""
        self.name = name
        self.reference = reference
        self.number = isinstance(reference, NumberReference)
        self.rows = reference.rows * (1 - reference.missing)
        """Of the sample, those that have a value."""
        if isinstance(reference, NumberReference):
            self.knots, self.up_to = _float32(reference)
            self.size = FIRST + len(self.knots) + 1
        else:
            self.labels = tuple(reference.shares)
            self.shares = np.array(list(reference.shares.values()))
            self.size = FIRST + len(self.labels)
        self.slice = slice(at, at + self.size)

    def cells(self, x: NDArray[np.float32]) -> NDArray[np.intp]:
        """(n,) values -> (n,) cells from 0 on. NaN is a missing value, whatever else may come."""
        if self.number:
            cells: NDArray[np.intp] = np.searchsorted(self.knots, x) + FIRST
            cells[x < self.knots[0]] = BEYOND
        else:
            named = (x >= 0) & (x < len(self.labels))
            cells = np.where(named, x, BEYOND - FIRST).astype(np.intp) + FIRST
        cells[np.isnan(x)] = MISSING
        return cells

    def groups(self) -> NDArray[np.intp]:
        """(size,): a few groups of cells whose shares tell whether values that follow each other are alike: missing,
        the lower half and the upper half of a number; a category's own cells."""
        cells = np.arange(self.size)
        if not self.number:
            return cells
        median = FIRST + int(np.searchsorted(self.up_to, 0.5))
        return np.where(cells == MISSING, 0, np.where(cells <= median, 1, 2))

    def beyond(self, counts: Counts) -> int:
        """How many values the sample hasn't seen the like of: outside a number's range, or of no named category."""
        return int(counts[BEYOND]) + (int(counts[-1]) if self.number else 0)

    def below(self, counts: Counts) -> NDArray[np.float64]:
        """Of a number: (knots,) share of the values up to each knot; there is a value."""
        there = counts[BEYOND:]
        return np.asarray((there[0] + np.cumsum(there[1:-1])) / there.sum(), np.float64)


class Cells:
    """All features of a version."""

    def __init__(self, features: Mapping[str, FeatureReference]) -> None:
        self.columns: list[Column] = []
        at = 0
        for name, reference in features.items():
            self.columns.append(Column(name, reference, at))
            at += self.columns[-1].size
        self.size = at
        groups = [column.groups() for column in self.columns]
        starts = np.cumsum([0, *(int(each.max()) + 1 for each in groups)])
        self.groups = np.concatenate([each + start for each, start in zip(groups, starts, strict=False)])
        """(size,): the group of each cell, counted through all features."""
        self.group_starts = starts[:-1]
        self.group_count = int(starts[-1])

    def of(self, features: NDArray[np.float32]) -> NDArray[np.intp]:
        """(n, d) values -> (n, d) cells, counted through all features."""
        out = np.empty(features.shape, np.intp, order="F")
        for j, column in enumerate(self.columns):
            out[:, j] = column.cells(np.ascontiguousarray(features[:, j]))
            out[:, j] += column.slice.start
        return out


def _float32(reference: NumberReference) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Knots as values come, and the share up to each: what falls together there is one knot."""
    knots = np.array(reference.values, np.float32)
    last = np.append(knots[1:] > knots[:-1], True)
    return knots[last], np.array(reference.up_to)[last]
