"""How good a version ought to be, before labels come: what its own calibrated probabilities promise.

An answer that says .8 is right in .8 of all cases, where probabilities are true; so the mean of the best labels'
probabilities is the accuracy to be expected, and with each answer counted as p of the one label and 1 - p of the other
there is an AUC too (confidence-based performance estimation, as nannyml has it). It believes that what the model has
learnt still holds, and knows nothing of drift that changes what is true: labels do (models/drift/performance.py).
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.condition import Change, Condition, State
from models.drift.excerpt import Low, lowest, pair
from models.drift.reference import histogram
from models.drift.tally import Ranks

WINDOW: Final = 1000
"""Answers."""
BLOCK: Final = 100
"""Answers whose means tell how much a window's mean varies, alike as neighbours may be."""
REFERENCE: Final = 2
"""Windows, the first ones, that the others are held against."""
DROP: Final = 0.05
"""By which the expected accuracy must be lower."""
CRITICAL: Final = 4.0
"""Deviations by which it must be."""
ROW: Final = 2
"""Windows in a row."""
CALM: Final = 3
BINS: Final = 128
"""Of the second label's log odds, from -8 to 8."""
_FURTHEST: Final = 8.0
_UNIT: Final = 1 << 20
"""Probabilities are summed as whole numbers of this part: the same in whatever order."""


class Expectation(msgspec.Struct, array_like=True):
    """A window that is over."""

    first: int
    """Event time, ms since epoch."""
    last: int
    answers: int
    accuracy: float
    deviation: float
    """Of that mean, by chance."""
    auc: float | None


class ExpectedState(msgspec.Struct, kw_only=True):
    """What changes with the stream: about 1 KB."""

    answers: int = 0
    """Of the open window."""
    first: int = 0
    block: int = 0
    """Sum of the open block's probabilities, in _UNIT."""
    blocks: list[int] = msgspec.field(default_factory=list)
    """Those of the window's complete blocks."""
    odds: list[int] = msgspec.field(default_factory=list)
    """(BINS,) answers by log odds; empty for more than two labels."""
    start: str = ""
    """Source of its first answer."""
    counts: list[int] = msgspec.field(default_factory=list)
    """Its answers by the best label's probability."""
    lowest: list[Low] = msgspec.field(default_factory=list)
    """Those of its answers that promise least."""
    beside: list[int] = msgspec.field(default_factory=list)
    """counts of the reference's windows together."""
    reference: list[Expectation] = msgspec.field(default_factory=list)
    newest: Expectation | None = None
    low: int = 0
    """Windows in a row that promise less."""
    condition: Condition = msgspec.field(default_factory=Condition)


class ExpectedPerformance:
    """Changes of kind `performance_expected`, subject NAME@VERSION: a warning, never more. Make it for classifiers
    whose manifest has a calibration alone: it believes their probabilities."""

    def __init__(self, subject: str, labels: int, state: ExpectedState | None = None) -> None:
        """subject: NAME@VERSION. labels: of the version, two at least; an AUC is there for two alone."""
        self._subject = subject
        self.state = state or ExpectedState()
        if labels == 2 and not self.state.odds:
            self.state.odds = [0] * BINS

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers of the version. Those whose score is no number don't count."""
        good = np.isfinite(answers.score)
        if not good.all():
            answers = answers.take(good)
        p = np.clip(answers.score, np.float32(0), np.float32(1))
        exact = p.astype(np.float64)
        parts = np.rint(exact * _UNIT).astype(np.int64)
        odds = _bins(np.where(answers.best == 1, exact, 1 - exact)) if self.state.odds else None
        changes: list[Change] = []
        at, n, shown = 0, len(answers), 0
        while at < n:
            end = min(n, at + BLOCK - self.state.answers % BLOCK)
            if not self.state.answers:
                self._begin(answers, at)
            self._sum(parts[at:end], None if odds is None else odds[at:end])
            if self.state.answers == WINDOW:
                self._show(answers, p, shown, end)
                shown = end
                if change := self._close(answers, end - 1):
                    changes.append(change)
            at = end
        self._show(answers, p, shown, n)
        return changes

    def page(self) -> dict[str, object]:
        """For people, JSON, each figure marked as estimated."""
        state = self.state
        return {
            "estimated": True,
            "open": bool(state.condition.level),
            "since": state.condition.since or None,
            "reference": [_shown(one) for one in state.reference],
            "newest": None if state.newest is None else _shown(state.newest),
        }

    def _begin(self, answers: Answers, at: int) -> None:
        state = self.state
        state.first, state.start = int(answers.ts[at]), answers.source(at)
        state.counts, state.lowest = [], []

    def _show(self, answers: Answers, p: NDArray[np.float32], at: int, end: int) -> None:
        """Some answers, for what people are shown of the window."""
        state, some = self.state, p[at:end]
        if not len(some):
            return
        state.counts = _added(state.counts, histogram(some))
        state.lowest = lowest(state.lowest, some, answers, at)

    def _sum(self, parts: NDArray[np.int64], odds: NDArray[np.intp] | None) -> None:
        state = self.state
        state.answers += len(parts)
        state.block += int(parts.sum())
        if odds is not None:
            state.odds = (np.bincount(odds, minlength=BINS) + state.odds).tolist()
        if state.answers % BLOCK == 0:
            state.blocks.append(state.block)
            state.block = 0

    def _close(self, answers: Answers, i: int) -> Change | None:
        state = self.state
        means = np.array(state.blocks) / (_UNIT * BLOCK)
        deviation = float(means.std(ddof=1)) / math.sqrt(len(means))
        auc = _auc(np.array(state.odds)) if state.odds else None
        newest = Expectation(state.first, int(answers.ts[i]), WINDOW, float(means.mean()), deviation, auc)
        state.newest = newest
        state.answers, state.blocks, state.odds = 0, [], [0] * len(state.odds)
        if len(state.reference) < REFERENCE:
            state.reference.append(newest)
            state.beside = _added(state.beside, state.counts)
            return None
        drop, sure = self._drop(newest)
        low = drop >= DROP and drop >= CRITICAL * sure
        state.low = state.low + 1 if low else 0
        level = int(bool(state.condition.level and drop >= DROP / 2) or state.low >= ROW)
        told = state.condition.see(level, newest.last, CALM)
        return self._told(*told, drop, sure, answers.source(i)) if told else None

    def _drop(self, newest: Expectation) -> tuple[float, float]:
        """By how much less is promised than by the reference, and the deviation of that."""
        reference = self.state.reference
        before = sum(one.accuracy for one in reference) / len(reference)
        # Between windows there may be more than between blocks.
        apart = abs(reference[0].accuracy - reference[-1].accuracy) / 2
        beside = math.hypot(*(one.deviation for one in reference)) / len(reference)
        return before - newest.accuracy, math.hypot(newest.deviation, beside, apart)

    def _told(self, state: State, reminder: bool, drop: float, sure: float, source: str) -> Change:
        newest, reference = self.state.newest, self.state.reference
        assert newest is not None
        before = sum(one.accuracy for one in reference) / len(reference)
        well = state == "resolved"
        told = f"accuracy {newest.accuracy:.3f} to be expected, against {before:.3f} at first"
        return Change(
            kind="performance_expected",
            subject=self._subject,
            state=state,
            severity="info" if well else "warning",
            ts=newest.last,
            source=source,
            title=f"{self._subject}: its probabilities promise {'as much as before' if well else 'less'}: {told}",
            evidence={
                "estimated": True,
                "window": _shown(newest) | {"from": self.state.start, "to": source},
                "reference": [_shown(one) for one in reference],
                "drop": round(drop, 4),
                "deviations": round(drop / sure, 2) if sure else None,
                "critical": CRITICAL,
                "histogram": pair(self.state.beside or None, self.state.counts),
                "examples": [low for _, low in self.state.lowest],
            },
            reminder=reminder,
        )


def _added(counts: list[int], more: list[int]) -> list[int]:
    return [one + other for one, other in zip(counts, more, strict=True)] if counts else more


def _bins(second: NDArray[np.float64]) -> NDArray[np.intp]:
    """(n,) probabilities -> (n,) bins of their log odds."""
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(second) - np.log1p(-second), -_FURTHEST, _FURTHEST)
    bins: NDArray[np.intp] = np.minimum((odds + _FURTHEST) * (BINS / (2 * _FURTHEST)), BINS - 1).astype(np.intp)
    return bins


def _auc(counts: NDArray[Any]) -> float | None:
    """Of answers by their log odds, each being p of the second label and 1 - p of the first."""
    middle = (np.arange(BINS) + 0.5) * (2 * _FURTHEST / BINS) - _FURTHEST
    p = 1 / (1 + np.exp(-middle))
    ranks = Ranks(np.stack((counts * (1 - p), counts * p)))
    return ranks.auc if ranks.others > 0 and ranks.those > 0 else None


def _shown(one: Expectation) -> dict[str, object]:
    return {
        "first": one.first,
        "last": one.last,
        "answers": one.answers,
        "accuracy": round(one.accuracy, 4),
        "deviation": round(one.deviation, 5),
        "auc": None if one.auc is None else round(one.auc, 4),
    }
