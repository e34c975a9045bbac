"""One feature in one window beside its reference: what has changed, by how much, and how likely that is by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from models.drift.cells import BEYOND, FIRST, MISSING, Column, Counts
from models.drift.significance import at_least, chi_square, ks, ks_critical, share_changed, together

What = Literal["distribution", "missing", "out_of_range", "unseen"]

POINT: Final = 0.01
"""Shares of missing, unseen and out-of-range values that have moved by less aren't worth a person's time."""
TESTS: Final = 3
"""Of each feature."""
_EXPECTED: Final = 5.0
"""Fewest that a cell must expect for chi-square to hold; smaller ones are taken together."""
_BARS: Final = 12


@dataclass(frozen=True, slots=True)
class Test:
    """One way in which a feature may have changed."""

    __test__ = False  # of pytest

    what: What
    effect: float
    """0 to 1: distance of the distribution functions, or the share that has moved."""
    p: float
    """Of so large a difference by chance."""


class Shift:
    """A feature's counts over a window, compared."""

    def __init__(self, column: Column, counts: Counts, alike: float) -> None:
        """counts: (column.size,). alike: 1 where values come independently of each other; 3 where they tell as much as
        a third of them would."""
        self._column = column
        self._counts = counts
        self._alike = alike
        self.total = int(counts.sum())
        self.there = self.total - int(counts[MISSING])
        self.tests = (self._distribution(), self._missing(), self._beyond())

    def of(self, bound: float) -> Test | None:
        """The largest change among those whose p is up to the bound."""
        return max((test for test in self.tests if test.p <= bound), key=lambda test: test.effect, default=None)

    @property
    def p(self) -> float:
        """The smallest."""
        return min(test.p for test in self.tests)

    def _distribution(self) -> Test:
        column, counts = self._column, self._counts
        if not self.there:
            return Test("distribution", 0.0, 1.0)
        if column.number:
            distance = float(np.abs(column.below(counts) - column.up_to).max())
            return Test("distribution", distance, ks(distance, self._size))
        shares = np.append(counts[FIRST:], counts[BEYOND]) / self.there
        reference = np.append(column.shares, max(0.0, 1 - column.shares.sum()))
        moved = float(np.abs(shares - reference).sum() / 2)
        return Test("distribution", moved, self._chi_square(shares, reference))

    @property
    def _size(self) -> float:
        """Window and sample, as one sample compared with the truth."""
        return together(self.there / self._alike, self._column.rows)

    def _chi_square(self, shares: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
        small = reference * self.there < _EXPECTED
        ours, theirs = shares[~small], reference[~small]
        few, expected = float(shares[small].sum()), float(reference[small].sum())
        if expected * self.there >= _EXPECTED:
            return self._spread_otherwise(np.append(ours, few), np.append(theirs, expected))
        # Too few even together: whether they are still that few, and how the others share the rest.
        k, rows = round(few * self.there), self._column.rows
        rare = share_changed(*self._fewer(k, self.there), expected * rows, rows)
        if k == self.there or not len(ours):
            return rare
        return min(1.0, 2 * min(rare, self._spread_otherwise(ours / ours.sum(), theirs / theirs.sum())))

    def _spread_otherwise(self, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
        statistic = self._size * float(((ours - theirs) ** 2 / theirs).sum())
        return chi_square(statistic, len(ours) - 1)

    def _missing(self) -> Test:
        reference = self._column.reference
        seen, missing = reference.missing * reference.rows, int(self._counts[MISSING])
        effect = abs(missing / max(self.total, 1) - reference.missing)
        return Test("missing", effect, self._changed(missing, self.total, seen, reference.rows, effect))

    def _beyond(self) -> Test:
        column = self._column
        beyond = column.beyond(self._counts)
        if column.number:  # the smallest and the largest of the sample lie at the ends of its range
            effect, seen, rows = beyond / max(self.there, 1), 1.0, max(column.rows - 1, 1.0)
            p = 1.0 if effect < POINT else at_least(*self._fewer(beyond, self.there), seen, rows)
            return Test("out_of_range", effect, p)
        rest = max(0.0, 1 - float(column.shares.sum()))
        effect = abs(beyond / max(self.there, 1) - rest)
        return Test("unseen", effect, self._changed(beyond, self.there, rest * column.rows, column.rows, effect))

    def _changed(self, k: int, n: int, seen: float, rows: float, effect: float) -> float:
        return 1.0 if effect < POINT else share_changed(*self._fewer(k, n), seen, rows)

    def _fewer(self, k: int, n: int) -> tuple[int, int]:
        return round(k / self._alike), max(round(n / self._alike), round(k / self._alike))

    def evidence(self, test: Test, bound: float) -> dict[str, object]:
        """JSON for people. bound: the p up to which a test of this window counts."""
        column, reference = self._column, self._column.reference
        told: dict[str, object] = {
            "feature": column.name,
            "what": test.what,
            "change": round(test.effect, 4),
            "p": float(f"{test.p:.3g}"),
            "counts_up_to_p": float(f"{bound:.3g}"),
            "values": self.there,
            "missing": _pair(self._counts[MISSING] / max(self.total, 1), reference.missing),
            "histogram": self.histogram(),
        }
        if self._alike > 1.005:
            told["alike"] = round(self._alike, 2)
        if test.what == "distribution":
            told["statistic"] = "kolmogorov-smirnov" if column.number else "chi-square"
        if column.number:
            told["critical"] = round(ks_critical(bound, self._size), 4)
        if column.number and self.there:
            below = column.below(self._counts)
            told["median"] = _pair(_quantile(column, below, 0.5), _quantile(column, column.up_to, 0.5))
            told["out_of_range"] = _pair(column.beyond(self._counts) / self.there, 0.0)
        elif self.there:
            rest = max(0.0, 1 - float(column.shares.sum()))
            told["unseen"] = _pair(self._counts[BEYOND] / self.there, rest)
        return told

    def histogram(self) -> dict[str, object]:
        """Shares of window and reference, bar by bar; of a number's values, those beyond the first and the last edge
        are in the first and the last bar."""
        column = self._column
        if not column.number:
            order = np.argsort(-np.maximum(column.shares, self._counts[FIRST:] / max(self.there, 1)), kind="stable")
            first = order[:_BARS]
            ours = self._counts[FIRST:][first] / max(self.there, 1)
            theirs = column.shares[first]
            return {
                "bars": [*(column.labels[i] for i in first), "all others"],
                "window": _shares(np.append(ours, max(0.0, 1 - ours.sum()) if self.there else 0.0)),
                "reference": _shares(np.append(theirs, max(0.0, 1 - theirs.sum()))),
            }
        low, high = (_quantile(column, column.up_to, level) for level in (0.01, 0.99))
        edges = np.linspace(low, high, _BARS + 1) if high > low else np.array([low - 1, low, low + 1])
        below = column.below(self._counts) if self.there else np.zeros(len(column.knots))
        bars = (_between(column, share, edges) for share in (below, column.up_to))
        ours, theirs = bars
        return {
            "edges": [float(f"{edge:.6g}") for edge in edges],
            "window": _shares(ours),
            "reference": _shares(theirs),
        }

    def strange(self) -> NDArray[np.bool_]:
        """(column.size,): cells that hold more than they should; their records are examples of the change."""
        there = max(self.there, 1)
        expected = np.zeros(self._column.size)
        expected[MISSING] = self._column.reference.missing
        if self._column.number:
            expected[FIRST:-1] = np.diff(self._column.up_to, prepend=0.0)
        else:
            expected[FIRST:] = self._column.shares
            expected[BEYOND] = max(0.0, 1 - self._column.shares.sum())
        shares = self._counts / there
        shares[MISSING] = self._counts[MISSING] / max(self.total, 1)
        return np.asarray(shares > 1.25 * expected + 0.002, np.bool_)


def _pair(window: float, reference: float) -> dict[str, float]:
    return {"window": float(f"{window:.6g}"), "reference": float(f"{reference:.6g}")}


def _shares(shares: NDArray[np.float64]) -> list[float]:
    return [round(share, 4) for share in shares.tolist()]


def _quantile(column: Column, below: NDArray[np.float64], level: float) -> float:
    """The knot up to which such a share of the values lies."""
    return float(column.knots[min(int(np.searchsorted(below, level - 1e-9)), len(column.knots) - 1)])


def _between(column: Column, below: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the values in each bar, even between two knots where there are many of them."""
    if len(column.knots) > _BARS * 3:
        at = np.interp(edges[1:-1], column.knots, below)
    else:
        places = np.searchsorted(column.knots, edges[1:-1], side="right")
        at = np.append(0.0, below)[places]
    return np.diff(np.concatenate(([0.0], at, [1.0 if below[-1] > 0 else 0.0])))
