"""Whether what a version is asked still looks like what it was made from: one detector over all its features.

Windows don't overlap: 1,000 answers, or those of a day where that is 500, or of a week where it is 200, since a model
with 30 answers a day would have its first window after a month else. Each compares every feature with the reference
(models/drift/shift.py): a number's distribution function by the Kolmogorov-Smirnov distance, categories by chi-square,
and the shares of missing, unseen and out-of-range values. Of all these tests together one counts by chance in a
thousand windows (Benjamini-Hochberg); a feature has changed when it counts in two windows in a row, or half of it has
moved in one, and is well again after three in which nothing about it is remarkable. Values that come in runs, as those
of one session do, count for as many as they are worth (Rao and Scott's design effect, by blocks of 100 answers). What
it finds, and when: docs/inputs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.cells import Cells, Counts
from models.drift.condition import Change, Condition, State
from models.drift.shift import TESTS, Shift, Test
from models.drift.significance import counts_up_to
from models.reference import FeatureReference

DAY_MS: Final = 24 * 3600 * 1000
CLOSES: Final = ((1000, 0), (500, DAY_MS), (200, 7 * DAY_MS))
"""(answers, ms of event time since the first): a window closes with the first answer that reaches both of a pair. By
1,000 a mean that moved by a quarter of its deviation is found; by 200 only changes of 17 points and more are."""
BLOCK: Final = 100
RATE: Final = 1e-3
"""How often any test of a window counts by chance."""
ROW: Final = 2
"""Windows in a row in which a feature's change counts; one is enough for a change of HALF."""
CALM: Final = 3
"""Windows in a row in which nothing about it is remarkable, before it is well again."""
REMARKABLE: Final = 0.01
"""p-value, of one test."""
HALF: Final = 0.5
"""A change so large is worse than one that is just there."""
_EVERY: Final = 50
"""Answers between two that may become examples."""
_TOLD: Final = 5
"""Features whose evidence is given."""
_EXAMPLES: Final = 5
_FADE: Final = 0.8
"""What earlier windows weigh where it is measured how alike neighbours are."""
_MOST: Final = 3.0
"""Times as alike as they were is the most that one window can say."""
_KNOWN: Final = 3
"""Windows after which it is known without looking at the next one."""


class Closed(msgspec.Struct):
    """A window that is over."""

    first: int
    """Event time of its first answer, ms since epoch."""
    last: int
    start: str
    """Source of its first answer."""
    end: str
    answers: int
    counts: bytes
    """(cells,) uint16."""
    alike: bytes
    """(features,) float64: as Shift has it."""


class InputState(msgspec.Struct, kw_only=True):
    """What changes with the stream: for 30 numbers about 12 KB."""

    answers: int = 0
    """Of the open window."""
    first: int = 0
    """Event time of its first answer, ms since epoch."""
    start: str = ""
    """Source of its first answer."""
    counts: bytes = b""
    """(cells,) uint16: of the open window."""
    block: bytes = b""
    """(groups,) uint16: of the open block."""
    squares: bytes = b""
    """(features,) int64: over the window's complete blocks and a feature's groups, the sum of squared counts."""
    kept: list[tuple[str, bytes]] = msgspec.field(default_factory=list)
    """Source and cells (features,) uint16 of a few of the window's answers."""
    spread: bytes = b""
    """(2, features) float64: how much blocks differed in all windows, and how much they should by chance."""
    row: bytes = b""
    """(features,) uint8: windows in a row in which a change counted; a large one counts as ROW."""
    calm: bytes = b""
    """(features,) uint8: windows in a row that were unremarkable, while it is changed."""
    changed: bytes = b""
    """(features,) uint8: whether it is."""
    windows: int = 0
    closed: Closed | None = None
    """The newest."""
    condition: Condition = msgspec.field(default_factory=Condition)


class InputDrift:
    """Changes of kind `input_drift`, subject NAME@VERSION: one condition for all features together."""

    def __init__(self, subject: str, features: Mapping[str, FeatureReference], state: InputState | None = None) -> None:
        """subject: NAME@VERSION. features: the manifest's, one at least, in the order of the answers' columns. state:
        what another one of this version left; one of another layout begins anew."""
        self._subject = subject
        self._cells = Cells(features)
        d = len(features)
        self._starts = np.array([column.slice.start for column in self._cells.columns])
        given = state if state and len(state.counts) == 2 * self._cells.size and len(state.row) == d else None
        self._state = _copy(given or InputState())
        self._counts: Counts = _ints(self._state.counts, "<u2", self._cells.size)
        self._block: Counts = _ints(self._state.block, "<u2", self._cells.group_count)
        self._squares: Counts = _ints(self._state.squares, "<i8", d)
        self._spread = np.frombuffer(self._state.spread or bytes(16 * d), "<f8").reshape(2, d).copy()
        self._row, self._calm, self._changed = (
            _ints(column, "u1", d) for column in (self._state.row, self._state.calm, self._state.changed)
        )

    @property
    def state(self) -> InputState:
        """As it is now."""
        return msgspec.structs.replace(
            _copy(self._state),
            counts=self._counts.astype("<u2").tobytes(),
            block=self._block.astype("<u2").tobytes(),
            squares=self._squares.astype("<i8").tobytes(),
            spread=self._spread.astype("<f8").tobytes(),
            row=self._row.astype("u1").tobytes(),
            calm=self._calm.astype("u1").tobytes(),
            changed=self._changed.astype("u1").tobytes(),
        )

    @property
    def condition(self) -> Condition:
        """What a person is told of."""
        return self._state.condition

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers of the version; those without features change nothing."""
        if answers.features is None or not len(answers):
            return []
        cells = self._cells.of(answers.features)
        changes: list[Change] = []
        at, n = 0, len(answers)
        while at < n:
            end = min(n, at + BLOCK - self._state.answers % BLOCK)
            end, full = self._end(answers.ts[at:end], at)
            self._take(answers, cells, at, end)
            if full and (change := self._close(answers, end - 1)):
                changes.append(change)
            at = end
        return changes

    def most_changed(self) -> list[dict[str, object]]:
        """For people, JSON: the features that changed most in the open window, or in the one before while that is
        short; beside other alerts, since inputs are where a person looks next."""
        closed = self._state.closed
        if self._state.answers >= CLOSES[-1][0]:
            shifts = self._shifts(self._counts, self._alike())
        elif closed is not None:
            shifts = self._shifts_of(closed)
        else:
            return []
        bound = REMARKABLE / (TESTS * len(shifts))
        found = []
        for column, shift, on in zip(self._cells.columns, shifts, self._changed.tolist(), strict=True):
            test = shift.of(bound)
            if test is not None:
                found.append((test.effect, column.name, test, bool(on)))
        found.sort(key=lambda one: (-one[0], one[1]))
        return [
            {"feature": name, "what": test.what, "change": round(effect, 4), "p": float(f"{test.p:.3g}"), "told": on}
            for effect, name, test, on in found[:_TOLD]
        ]

    def page(self) -> dict[str, object]:
        """For people, JSON: each feature's newest whole window beside its reference."""
        state, closed = self._state, self._state.closed
        told: dict[str, object] = {
            "windows": state.windows,
            "answers_since": state.answers,
            "open": bool(state.condition.level),
            "level": state.condition.level,
            "since": state.condition.since or None,
            "changed": [column.name for column, on in zip(self._cells.columns, self._changed, strict=True) if on],
        }
        if closed is None:
            return told | {"window": None, "features": []}
        shifts = self._shifts_of(closed)
        bound = _bound(shifts)
        features = [shift.evidence(_main(shift, bound), bound) for shift in shifts]
        return told | {"window": _window(closed), "features": features}

    def _end(self, ts: NDArray[np.int64], at: int) -> tuple[int, bool]:
        """How far of the next answers the window reaches, and whether it closes there. ts: theirs; at: their place."""
        before = self._state.answers
        first = self._state.first if before else int(ts[0])
        full = False
        for fewest, age in CLOSES:
            enough = max(0, fewest - before - 1)
            over = np.flatnonzero(ts[enough:] - first >= age)
            if len(over):
                ts, full = ts[: enough + int(over[0]) + 1], True
        return at + len(ts), full

    def _take(self, answers: Answers, cells: NDArray[np.intp], at: int, end: int) -> None:
        state = self._state
        if not state.answers:
            state.first, state.start, state.kept = int(answers.ts[at]), answers.source(at), []
        for i in range(at + -state.answers % _EVERY, end, _EVERY):
            state.kept.append((answers.source(i), (cells[i] - self._starts).astype("<u2").tobytes()))
        flat = cells[at:end].ravel()
        self._counts += np.bincount(flat, minlength=self._cells.size)
        self._block += np.bincount(self._cells.groups[flat], minlength=self._cells.group_count)
        state.answers += end - at
        if state.answers % BLOCK == 0:
            self._squares += np.add.reduceat(self._block * self._block, self._cells.group_starts)
            self._block[:] = 0

    def _close(self, answers: Answers, i: int) -> Change | None:
        """The window ends with answer i: looks at it, and begins anew."""
        state = self._state
        alike = self._measure_alike()
        shifts = self._shifts(self._counts, alike)
        bound = _bound(shifts)
        before = self._changed.copy()
        for j, shift in enumerate(shifts):
            test = shift.of(bound)
            self._row[j] = 0 if test is None else min(self._row[j] + (ROW if test.effect >= HALF else 1), 255)
            self._calm[j] = 0 if test or shift.p < REMARKABLE else min(self._calm[j] + 1, 255)
            if self._row[j] >= ROW:
                self._changed[j] = 1
            elif self._calm[j] >= CALM:
                self._changed[j] = 0
        state.windows += 1
        counted = self._counts.astype("<u2").tobytes()
        last, end = int(answers.ts[i]), answers.source(i)
        state.closed = Closed(state.first, last, state.start, end, state.answers, counted, alike.tobytes())
        told = state.condition.see(self._level(shifts, bound), int(answers.ts[i]), 1)
        about = np.flatnonzero(self._changed if self._changed.any() else before).tolist()
        change = self._told(*told, about, shifts, bound) if told else None
        state.answers = 0
        self._counts[:] = self._block[:] = 0
        self._squares[:] = 0
        return change

    def _measure_alike(self) -> NDArray[np.float64]:
        """(features,): how alike the window's neighbours are, as earlier windows know it: within one in which something
        changes blocks differ too, which says nothing of neighbours and is limited."""
        blocks = self._state.answers // BLOCK
        totals = np.bincount(self._cells.groups, self._counts, self._cells.group_count) - self._block
        starts = self._cells.group_starts
        differed = self._squares - np.add.reduceat(totals * totals, starts) / blocks
        mixed = 1 - np.add.reduceat((totals / (blocks * BLOCK)) ** 2, starts)
        expected = (blocks - 1) * BLOCK * mixed
        before = self._alike()
        if self._state.windows:
            differed = np.minimum(differed, _MOST * before * expected)
        self._spread *= _FADE
        self._spread += (differed, expected)
        return before if self._state.windows >= _KNOWN else np.maximum(before, self._alike())

    def _alike(self) -> NDArray[np.float64]:
        differed, expected = self._spread
        return np.where(expected > 0.5, np.maximum(1.0, differed / np.maximum(expected, 0.5)), 1.0)

    def _shifts_of(self, closed: Closed) -> list[Shift]:
        return self._shifts(_ints(closed.counts, "<u2", self._cells.size), np.frombuffer(closed.alike, "<f8"))

    def _shifts(self, counts: Counts, alike: NDArray[np.float64]) -> list[Shift]:
        columns = zip(self._cells.columns, alike.tolist(), strict=True)
        return [Shift(column, counts[column.slice], each) for column, each in columns]

    def _level(self, shifts: list[Shift], bound: float) -> int:
        """0: well; one more with every doubling of the changed features, and where one is far off."""
        changed = int(self._changed.sum())
        if not changed:
            return 0
        far = any(on and _main(shift, bound).effect >= HALF for on, shift in zip(self._changed, shifts, strict=True))
        return changed.bit_length() + far

    def _told(self, state: State, reminder: bool, about: list[int], shifts: list[Shift], bound: float) -> Change:
        closed = self._state.closed
        assert closed is not None
        tests = {j: _main(shifts[j], bound) for j in about}
        ranked = sorted(about, key=lambda j: (-tests[j].effect, j))
        features = [
            shifts[j].evidence(tests[j], bound) | {"examples": self._examples(j, shifts[j])} for j in ranked[:_TOLD]
        ]
        well = state == "resolved"
        return Change(
            kind="input_drift",
            subject=self._subject,
            state=state,
            severity="info" if well else "warning",
            ts=closed.last,
            source=closed.end,
            title=self._title(well, [(self._cells.columns[j].name, tests[j]) for j in ranked]),
            evidence={
                "window": _window(closed),
                "changed": [self._cells.columns[j].name for j in ranked],
                "of": len(shifts),
                "features": features,
            },
            reminder=reminder,
        )

    def _title(self, well: bool, ranked: list[tuple[str, Test]]) -> str:
        if well:
            return f"{self._subject}: its inputs look like its reference again"
        named = [f"{name} ({_in_words(test)})" for name, test in ranked[:3]]
        more = f" and {len(ranked) - 3} more" if len(ranked) > 3 else ""
        return f"{self._subject}: inputs no longer look like its reference: {', '.join(named)}{more}"

    def _examples(self, j: int, shift: Shift) -> list[str]:
        strange = shift.strange()
        found = [source for source, cells in self._state.kept if strange[np.frombuffer(cells, "<u2")[j]]]
        return found[-_EXAMPLES:]


def _bound(shifts: list[Shift]) -> float:
    return counts_up_to(np.array([test.p for shift in shifts for test in shift.tests]), RATE)


def _main(shift: Shift, bound: float) -> Test:
    """What has changed most; where nothing counts, what is least likely to be chance."""
    return shift.of(bound) or min(shift.tests, key=lambda test: (test.p, -test.effect))


def _in_words(test: Test) -> str:
    points = f"{100 * test.effect:.0f} points"
    return f"{points} {test.what.replace('_', ' ')}" if test.what != "distribution" else points


def _window(closed: Closed) -> dict[str, object]:
    return {
        "first": closed.first,
        "last": closed.last,
        "from": closed.start,
        "to": closed.end,
        "answers": closed.answers,
    }


def _copy(state: InputState) -> InputState:
    return msgspec.structs.replace(state, kept=list(state.kept), condition=msgspec.structs.replace(state.condition))


def _ints(column: bytes, dtype: Any, size: int) -> Counts:
    return np.frombuffer(column, dtype).astype(np.int64) if column else np.zeros(size, np.int64)
