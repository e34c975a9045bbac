"""Whether a version says its labels as often as when it began."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift import chi_square, dependence
from models.drift.answers import Answers
from models.drift.batch import Batch
from models.drift.condition import Condition
from models.drift.reference import ConfidenceReference
from models.drift.spec import Spec
from models.drift.voice import Told, Voice

WINDOW: Final = 1000
LEVEL: Final = 1e-4
"""Of the test of a window."""
IN_A_ROW: Final = 2
APART: Final = 0.05
"""Total variation distance, at least: a difference that doesn't matter isn't told, however certain it is."""
STAY_LEVEL: Final = 0.01
STAY: Final = 0.6
"""What keeps it open once it is: that level, and so much of the distance."""
CALM: Final = 2
RARE: Final = 10
"""Counts in the reference: labels with fewer are one together, `the rest`,"""
FREQUENT: Final = 50
"""unless they have so many in the window: by chance none has."""
SHOWN: Final = 5
"""Labels that evidence names: those that changed most."""
BARS: Final = 12
"""Labels of its histograms: the most frequent ones."""
EVERY: Final = 10
"""Answers between two that may become examples."""
EXAMPLES: Final = 5
_KEPT: Final = np.dtype([("label", "<u2"), ("partition", "<i4"), ("offset", "<i8")])

_Number = TypeVar("_Number", np.int64, np.float64)


class LabelReference(msgspec.Struct, frozen=True):
    """Frozen once it is complete."""

    counts: list[int]
    """One a label."""
    dependence: float
    """models/drift/dependence.py"""
    at: int
    """Answers of the version before the first window."""


class LabelState(msgspec.Struct):
    """What changes with the stream."""

    sample: bytes = b""
    """uint16: labels of the answers that become the reference."""
    counts: bytes = b""
    """int64, one a label: of the window that isn't full; empty: nothing yet."""
    seen: int = 0
    """Answers in it."""
    from_ts: int = 0
    source: str = ""
    """Of its first answer."""
    kept: bytes = b""
    """Label and source of a few of its answers."""
    in_a_row: int = 0
    last: bytes = b""
    """Counts of the last full window; empty: there was none."""
    statistic: float | None = None
    p_value: float | None = None
    """Of the last full window."""
    drifted: Condition = msgspec.field(default_factory=Condition)


class LabelDrift:
    """Condition `label_drift`: in two windows of 1,000 in a row shares differ from those of the reference, by a
    chi-square test at .0001 (divided by how much labels depend on their neighbours) and by .05 in all."""

    def __init__(self, spec: Spec, state: LabelState, reference: LabelReference | None) -> None:
        """spec: of a classifier."""
        self.spec = spec
        self.state = state
        self.reference = reference
        self._voice = Voice(spec)

    def fold(self, batch: Batch, first: ConfidenceReference | None, begun: int) -> list[Told]:
        """The next answers. first: the reference of confidences after these answers; begun: the number of its first:
        the same answers are this one's, none where it is the manifest's."""
        state = self.state
        best = np.minimum(batch.answers.best, len(self.spec.labels) - 1)
        at = 0
        if self.reference is None:
            if first is not None and first.origin != "first":
                state.sample = b""
                return []
            at = len(batch) if first is None else first.at - batch.first
            held = state.sample + best[:at].astype("<u2").tobytes()
            state.sample = held[2 * max(begun - (batch.first + at - len(held) // 2), 0) :]
            if first is None:
                return []
            self._freeze(np.frombuffer(state.sample, "<u2")[: len(first)], first.at)
        told: list[Told] = []
        while at < len(batch):
            end = min(at + WINDOW - state.seen, len(batch))
            self._add(batch, best, at, end)
            if state.seen == WINDOW:
                told += self._full(batch, end - 1)
            at = end
        return told

    def _freeze(self, labels: NDArray[np.uint16], at: int) -> None:
        counts = np.bincount(labels, minlength=len(self.spec.labels)).astype(np.int64)
        self.reference = LabelReference(counts.tolist(), dependence.of_labels(labels, counts), at)
        self.state.sample = b""

    def _add(self, batch: Batch, best: NDArray[np.uint16], start: int, end: int) -> None:
        state = self.state
        if not state.seen:
            state.from_ts, state.source = int(batch.answers.ts[start]), batch.answers.source(start)
        some = slice(start + -state.seen % EVERY, end, EVERY)
        kept = np.empty(len(best[some]), _KEPT)
        kept["label"], kept["partition"] = best[some], batch.answers.partition[some]
        kept["offset"] = batch.answers.offset[some]
        state.kept += kept.tobytes()
        counts = np.bincount(best[start:end], minlength=len(self.spec.labels))
        if state.counts:
            counts += np.frombuffer(state.counts, np.int64)
        state.counts = counts.tobytes()
        state.seen += end - start

    def _full(self, batch: Batch, i: int) -> list[Told]:
        """The window is full: its last answer is i."""
        state, reference = self.state, self.reference
        assert reference is not None
        then, now = np.array(reference.counts, np.int64), np.frombuffer(state.counts, np.int64)
        common = (then >= RARE) | (now >= FREQUENT)
        x, freedom = chi_square.statistic(_grouped(then, common), _grouped(now, common))
        x /= reference.dependence
        p = chi_square.chance(x, freedom)
        shares_then, shares_now = then / then.sum(), now / now.sum()
        apart = float(np.abs(_grouped(shares_then, common) - _grouped(shares_now, common)).sum() / 2)
        differs = p < LEVEL and apart >= APART
        state.in_a_row = state.in_a_row + 1 if differs else 0
        state.statistic, state.p_value = round(x, 6), float(f"{p:.3g}")
        goes_on = state.drifted.level and p < STAY_LEVEL and apart >= STAY * APART
        level = 1 if state.in_a_row >= IN_A_ROW or goes_on else 0
        told: list[Told] = []
        if seen := state.drifted.see(level, int(batch.answers.ts[i]), CALM):
            evidence: dict[str, object] = {
                "window": {
                    "records": WINDOW,
                    "from": state.source,
                    "to": batch.answers.source(i),
                    "from_ts": state.from_ts,
                    "to_ts": int(batch.answers.ts[i]),
                },
                "reference": {"records": int(then.sum()), "dependence": round(reference.dependence, 3)},
                "statistic": state.statistic,
                "critical": round(chi_square.critical(LEVEL, freedom), 6),
                "degrees_of_freedom": freedom,
                "p_value": state.p_value,
                "level": LEVEL,
                "in_a_row": state.in_a_row,
                "distance": round(apart, 6),
            }
            title = self._changed(shares_then, shares_now, batch.answers, evidence)
            if not level:
                title = f"Labels of {self.spec.identity} are as they were"
            told = self._voice.say("label_drift", seen, "warning", title, evidence, batch, i)
        state.last, state.counts, state.kept, state.seen = state.counts, b"", b"", 0
        return told

    def _changed(
        self, then: NDArray[np.float64], now: NDArray[np.float64], answers: Answers, evidence: dict[str, object]
    ) -> str:
        """Adds the labels that changed most, and answers that say the one that grew most; returns a sentence about the
        first. answers: the topic's."""
        most = np.argsort(-np.abs(now - then), kind="stable")[:SHOWN].tolist()
        evidence["labels"] = [
            {
                "label": self.spec.labels[k],
                "reference": round(float(then[k]), 6),
                "window": round(float(now[k]), 6),
            }
            for k in most
        ]
        bars = np.argsort(-np.maximum(then, now), kind="stable")[:BARS]
        evidence["histogram"] = {
            "bars": [*(self.spec.labels[k] for k in bars.tolist()), "all others"],
            "reference": _barred(then, bars),
            "window": _barred(now, bars),
        }
        kept = np.frombuffer(self.state.kept, _KEPT)
        grown = kept[kept["label"] == int((now - then).argmax())][-EXAMPLES:]
        evidence["examples"] = [f"{answers.topic}/{one['partition']}/{one['offset']}" for one in grown]
        one = most[0]
        label = self.spec.labels[one]
        return f"{self.spec.identity} answers {label} in {now[one]:.1%} of all cases, {then[one]:.1%} when it began"

    def page(self) -> dict[str, object]:
        """For people, JSON: the shares of at most 20 labels, the most frequent first."""
        reference, state = self.reference, self.state
        if reference is None:
            return {"collected": len(state.sample) // 2}
        then = np.array(reference.counts, np.int64)
        now = np.frombuffer(state.last, np.int64) if state.last else np.zeros_like(then)
        order = np.argsort(-(then + now), kind="stable")[:20].tolist()
        shares = [
            {
                "label": self.spec.labels[k],
                "reference": round(float(then[k] / then.sum()), 6),
                "window": round(float(now[k] / now.sum()), 6) if state.last else None,
            }
            for k in order
        ]
        return {"labels": shares, "statistic": state.statistic, "p_value": state.p_value, "in_a_row": state.in_a_row}


def _grouped(of_labels: NDArray[_Number], common: NDArray[np.bool_]) -> NDArray[_Number]:
    """Those of the common labels, and the sum of all others as the last one."""
    return np.append(of_labels[common], of_labels[~common].sum())


def _barred(shares: NDArray[np.float64], bars: NDArray[np.intp]) -> list[float]:
    """Of these labels, and of all others together."""
    of_bars = shares[bars]
    return [round(share, 4) for share in (*of_bars.tolist(), max(0.0, 1.0 - float(of_bars.sum())))]
