"""Whether a version is less sure than when it began: windows against its reference, and ADWIN."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from models.drift.adwin import Adwin, Cut
from models.drift.batch import Batch
from models.drift.collecting import Collecting
from models.drift.condition import Condition
from models.drift.excerpt import pair, shown
from models.drift.fall import SPREAD, Fall, tells
from models.drift.kolmogorov import chance, distance
from models.drift.reference import BINS, WINDOW, ConfidenceReference, histogram
from models.drift.spec import Spec
from models.drift.voice import Severity, Told, Voice
from models.drift.window import Window

IN_A_ROW: Final = 3
"""Windows that differ, until one says so."""
DROP: Final = 0.05
"""Of the mean, at least, for the confirmed rule."""
DEEP: Final = 0.2
"""Drop of the mean that makes it worse."""
LATELY: Final = 1000
"""Answers for which a fall counts."""
CALM: Final = 5
"""Windows in a row without a difference that end a condition."""
KEPT: Final = 5
"""Newest windows that a page shows."""
SURE: Final = 1e-12
"""Chances are exact to this."""


class Seen(msgspec.Struct, frozen=True):
    """A full window."""

    ts: int
    """Of its last answer."""
    distance: float
    mean: float
    deviation: float
    histogram: list[int]
    source: str = ""
    from_ts: int = 0
    """Of its first answer."""


class ConfidenceState(msgspec.Struct, kw_only=True):
    """What changes with the stream: 4 KB, and up to 8 more until the reference is complete."""

    collecting: Collecting = msgspec.field(default_factory=Collecting)
    window: Window = msgspec.field(default_factory=Window)
    adwin: Adwin = msgspec.field(default_factory=Adwin)
    fall: Fall | None = None
    """The last one."""
    in_a_row: int = 0
    """Windows that differed, up to now."""
    seen: list[Seen] = msgspec.field(default_factory=list)
    """The newest ones, oldest first."""
    warned: Condition = msgspec.field(default_factory=Condition)
    suspected: Condition = msgspec.field(default_factory=Condition)
    drifted: Condition = msgspec.field(default_factory=Condition)


class ConfidenceDrift:
    """Conditions `drift_warning` (ADWIN finds a fall), `drift_suspected` (three windows in a row differ) and `drift`
    (these, and the mean is lower by .05, and ADWIN agrees); preset classic: `drift` at three windows."""

    def __init__(self, spec: Spec, state: ConfidenceState, reference: ConfidenceReference | None) -> None:
        self.spec = spec
        self.state = state
        self.reference = reference
        self._voice = Voice(spec)

    def fold(self, batch: Batch) -> list[Told]:
        """The next answers."""
        state, told, at = self.state, list[Told](), 0
        falls = [cut for cut in state.adwin.fold(batch.sums, batch.squares) if cut.after < cut.before]
        if self.reference is None:
            found = list(falls)
            at, self.reference = state.collecting.fold(batch, falls, self.spec.reference_confidence)
            for cut in found[: len(found) - len(falls)]:
                state.fall = Fall.of(cut, batch)
        if self.reference is not None:
            while at + WINDOW - len(state.window) <= len(batch):
                end = at + WINDOW - len(state.window)
                while falls and falls[0].at <= end:
                    told += self._fell(batch, falls.pop(0), at, self.reference)
                told += self._full(batch, at, end, self.reference)
                state.window, at = Window(), end
            for cut in falls:
                told += self._fell(batch, cut, at, self.reference)
            state.window.add(batch, at, len(batch))
        return told

    def _fell(self, batch: Batch, cut: Cut, start: int, reference: ConfidenceReference) -> list[Told]:
        """ADWIN found a fall. start: place of the first answer that the window doesn't have yet."""
        state, i = self.state, cut.at - 1
        state.fall = Fall.of(cut, batch)
        if not tells(cut, reference.deviation, reference.dependence):
            return []
        title = f"Confidence of {self.spec.identity} has begun to fall: {cut.before:.3f} to {cut.after:.3f}"
        seen = state.warned.see(1, int(batch.answers.ts[i]), CALM)
        if seen is None:
            return []
        evidence = self._latest(batch, start, i, reference)
        evidence |= {
            "adwin": state.fall.told(batch.first + i),
            "window_records": cut.width,
            "statistic": round(cut.before - cut.after, 6),
            "critical": state.fall.needed,
        }
        return self._voice.say("drift_warning", seen, "warning", title, evidence, batch, i)

    def _latest(self, batch: Batch, start: int, i: int, reference: ConfidenceReference) -> dict[str, object]:
        """Evidence: what came since the last full window began, up to answer i, beside the reference. ADWIN's own
        window is as long as the stream stayed the same, and keeps no answers."""
        window = msgspec.structs.replace(self.state.window)
        window.add(batch, min(start, i), i + 1)
        last = self.state.seen[-1] if self.state.seen else None
        counts = histogram(np.frombuffer(window.values, "<f4"))
        if last is not None:
            counts = [one + other for one, other in zip(counts, last.histogram, strict=True)]
        return {
            "window": {
                "records": sum(counts),
                "from": last.source if last else window.source,
                "to": batch.answers.source(i),
                "from_ts": last.from_ts if last else window.ts,
                "to_ts": int(batch.answers.ts[i]),
            },
            "reference": reference.told(),
            "histogram": pair(reference.histogram, counts),
            "lowest": shown(window.lowest),
        }

    def _full(self, batch: Batch, start: int, end: int, reference: ConfidenceReference) -> list[Told]:
        """A window is full: its last answers are those from start up to end."""
        state, ts, number = self.state, int(batch.answers.ts[end - 1]), batch.first + end - 1
        values = state.window.and_of(batch, start, end)
        mean, deviation = state.window.moments(batch, start, end)
        d = distance(reference.growing, values)
        first = (state.window.source, state.window.ts)
        if not state.window.values:
            first = (batch.answers.source(start), int(batch.answers.ts[start]))
        state.seen = [*state.seen[1 - KEPT :], Seen(ts, d, mean, deviation, histogram(values), *first)]
        differs = d >= reference.critical - SURE
        state.in_a_row = state.in_a_row + 1 if differs else 0
        told = self._no_longer_warned(batch, start, end, reference)
        plain = state.drifted if self.spec.preset == "classic" else state.suspected
        level = int(state.in_a_row >= IN_A_ROW or (plain.level > 0 and differs))
        looks = [("drift" if plain is state.drifted else "drift_suspected", plain, level)]
        if plain is not state.drifted:
            looks.append(("drift", state.drifted, self._confirmed(reference.mean - mean, number)))
        for kind, condition, found in looks:
            if seen := condition.see(found, ts, CALM):
                title = self._title(reference, mean, found)
                evidence = self._compared(batch, start, end, reference)
                severity: Severity = "critical" if kind == "drift" else "warning"
                told += self._voice.say(kind, seen, severity, title, evidence, batch, end - 1)
        return told

    def _no_longer_warned(self, batch: Batch, start: int, end: int, reference: ConfidenceReference) -> list[Told]:
        state, number, i = self.state, batch.first + end - 1, end - 1
        if not state.warned.level or state.fall is None or number - state.fall.number < LATELY:
            return []
        title = f"Confidence of {self.spec.identity} hasn't fallen further in {LATELY} answers"
        seen = state.warned.see(0, int(batch.answers.ts[i]), 1)
        evidence = self._compared(batch, start, end, reference)
        return self._voice.say("drift_warning", seen, "warning", title, evidence, batch, i)

    def _confirmed(self, drop: float, number: int) -> int:
        """Level of the confirmed rule at a full window, whose mean is lower by drop."""
        state, needed = self.state, self.needed
        if state.drifted.level:
            still = state.in_a_row > 0 and drop >= needed / 2
        else:
            fell = state.fall is not None and number - state.fall.number <= LATELY
            still = state.in_a_row >= IN_A_ROW and drop >= needed and fell
        return 0 if not still else 2 if drop >= max(DEEP, needed) else 1

    @property
    def needed(self) -> float:
        """Drop of a window's mean that the confirmed rule wants."""
        if self.reference is None:
            return DROP
        return max(DROP, SPREAD * self.reference.deviation * math.sqrt((self.reference.dependence - 1) / WINDOW))

    def _title(self, reference: ConfidenceReference, mean: float, level: int) -> str:
        if not level:
            return f"Confidence of {self.spec.identity} is as it was: {reference.mean:.3f}, now {mean:.3f}"
        way = "fell" if mean < reference.mean else "rose"
        return f"Confidence of {self.spec.identity} {way} from {reference.mean:.3f} to {mean:.3f}"

    def _compared(self, batch: Batch, start: int, end: int, reference: ConfidenceReference) -> dict[str, object]:
        """Evidence: the window that is full now, beside the reference."""
        state, seen = self.state, self.state.seen[-1]
        window = msgspec.structs.replace(state.window)
        window.add(batch, start, end)
        p = chance(round(seen.distance / math.sqrt(reference.dependence), 9), len(reference), WINDOW)
        return {
            "window": {
                "records": WINDOW,
                "from": window.source,
                "to": batch.answers.source(end - 1),
                "from_ts": window.ts,
                "to_ts": seen.ts,
                "mean": round(seen.mean, 6),
                "deviation": round(seen.deviation, 6),
            },
            "reference": reference.told(),
            "statistic": round(seen.distance, 6),
            "critical": round(reference.critical, 6),
            "p_value": max(float(f"{p:.3g}"), SURE),
            "in_a_row": state.in_a_row,
            "needed_drop": round(self.needed, 6),
            "adwin": None if state.fall is None else state.fall.told(batch.first + end - 1),
            "histogram": pair(reference.histogram, seen.histogram),
            "lowest": shown(window.lowest),
        }

    def page(self) -> dict[str, object]:
        """For people, JSON."""
        state, reference = self.state, self.reference
        now = [sum(column) for column in zip(*(seen.histogram for seen in state.seen), strict=True)] or [0] * BINS
        return {
            "reference": None if reference is None else reference.told() | {"critical": round(reference.critical, 6)},
            "collected": len(state.collecting),
            "histogram": {
                "from": 0,
                "to": 1,
                "reference": None if reference is None else reference.histogram,
                "now": now,
                "records": sum(now),
            },
            "windows": [
                {"ts": seen.ts, "statistic": round(seen.distance, 6), "mean": round(seen.mean, 6)}
                for seen in state.seen
            ],
            "in_a_row": state.in_a_row,
            "needed_drop": round(self.needed, 6),
            "adwin": {
                "records": state.adwin.width,
                "mean": None if state.adwin.mean is None else round(state.adwin.mean, 6),
                "last_fall": None if state.fall is None else msgspec.to_builtins(state.fall),
            },
        }
