"""Whether a version is less sure than when it began: windows against its reference, and ADWIN."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift import dependence
from models.drift.adwin import Adwin, Cut
from models.drift.batch import Batch
from models.drift.condition import Change, Condition
from models.drift.kolmogorov import chance, distance
from models.drift.reference import BINS, FEWEST, RECORDS, WINDOW, ConfidenceReference, Origin, histogram
from models.drift.spec import Spec
from models.drift.window import Window

IN_A_ROW: Final = 3
"""Windows that differ, until one says so."""
DROP: Final = 0.05
"""Of the mean, at least, for the confirmed rule."""
DEEP: Final = 0.2
"""Drop of the mean that makes it worse."""
SPREAD: Final = 4.0
"""Where records depend on each other: a drop is so many of the deviations that dependence alone adds to it."""
LATELY: Final = 1000
"""Answers for which a find of ADWIN counts."""
CALM: Final = 5
"""Windows in a row without a difference that end a condition."""
KEPT: Final = 5
"""Newest windows that a page shows."""

Told = tuple[int, Change]
"""The answer's number that decided, and what to say."""


class Fall(msgspec.Struct, frozen=True):
    """A change downwards that ADWIN found."""

    number: int
    """Of the answer at which it was found."""
    source: str
    ts: int
    before: float
    after: float
    since: int
    """Answers behind the cut."""


class Seen(msgspec.Struct, frozen=True):
    """A full window."""

    ts: int
    """Of its last answer."""
    distance: float
    mean: float
    deviation: float
    histogram: list[int]


class ConfidenceState(msgspec.Struct, kw_only=True):
    """What changes with the stream: 4 KB, and up to 8 more until the reference is complete."""

    sample: bytes = b""
    """float32: the answers that become the reference."""
    begun: int = 0
    """Number of the first of them."""
    begun_ts: int = 0
    """Event time of it."""
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
        self._growing = reference.growing if reference else None

    def fold(self, batch: Batch) -> list[Told]:
        """The next answers."""
        told: list[Told] = []
        falls = [cut for cut in self.state.adwin.fold(batch.sums, batch.squares) if cut.after < cut.before]
        at = self._collect(batch, falls) if self.reference is None else 0
        if self.reference is not None:
            while at + WINDOW - len(self.state.window) <= len(batch):
                end = at + WINDOW - len(self.state.window)
                while falls and falls[0].at <= end:
                    told += self._fell(batch, falls.pop(0))
                told += self._full(batch, at, end)
                self.state.window = Window()
                at = end
            self.state.window.add(batch, at, len(batch))
        for cut in falls:
            told += self._fell(batch, cut)
        return told

    def _collect(self, batch: Batch, falls: list[Cut]) -> int:
        """Takes answers into the reference until it is complete. Returns how many it took.

        A fall ends it: what came before is the reference, if that is 500 at least, else the manifest's sample. Where
        there is none there is nothing yet that the fall could be held against, and it begins anew behind it.
        """
        state, taken = self.state, 0
        while True:
            if not state.sample:
                state.begun, state.begun_ts = batch.first + taken, int(batch.answers.ts[min(taken, len(batch) - 1)])
            end = min(taken + RECORDS - len(state.sample) // 4, len(batch))
            fall = falls[0] if falls and falls[0].at <= end else None
            end = end if fall is None else fall.at
            state.sample += batch.confidence[taken:end].astype("<f4", copy=False).tobytes()
            taken, values = end, np.frombuffer(state.sample, "<f4")
            if fall is None:
                if len(values) == RECORDS:
                    self._freeze(values, batch, taken, "first")
                return taken
            before = values[: max(len(values) - fall.since, 0)]
            if len(before) >= FEWEST:
                if _tells(fall, float(before.std(dtype=np.float64)), dependence.of_values(before)):
                    self._freeze(before, batch, taken, "first")
                    return taken
            elif len(self.spec.reference_confidence) >= FEWEST:
                self._freeze(np.array(self.spec.reference_confidence, np.float32), batch, taken, "manifest")
                return taken
            else:
                state.sample = b""
            self._note(batch, falls.pop(0))

    def _freeze(self, values: NDArray[np.float32], batch: Batch, end: int, origin: Origin) -> None:
        """The reference is complete with the answers up to end."""
        state = self.state
        span = (state.begun_ts, int(batch.answers.ts[end - 1])) if origin == "first" else (0, 0)
        self.reference = ConfidenceReference.of(values, state.begun, batch.first + end, origin, span)
        self._growing = self.reference.growing
        state.sample = b""

    def _note(self, batch: Batch, cut: Cut) -> None:
        i = cut.at - 1
        ts, source = int(batch.answers.ts[i]), batch.answers.source(i)
        self.state.fall = Fall(batch.first + i, source, ts, round(cut.before, 6), round(cut.after, 6), cut.since)

    def _fell(self, batch: Batch, cut: Cut) -> list[Told]:
        """ADWIN found a fall."""
        self._note(batch, cut)
        if self.reference and not _tells(cut, self.reference.deviation, self.reference.dependence):
            return []
        title = f"Confidence of {self.spec.identity} has begun to fall: {cut.before:.3f} to {cut.after:.3f}"
        evidence: dict[str, object] = {"adwin": self._adwin(batch.first + cut.at - 1), "window_records": cut.width}
        return self._say("drift_warning", self.state.warned, 1, batch, cut.at - 1, title, evidence)

    def _full(self, batch: Batch, start: int, end: int) -> list[Told]:
        """A window is full: its last answers are those from start up to end."""
        state, reference = self.state, self.reference
        assert reference is not None
        assert self._growing is not None
        values = state.window.and_of(batch, start, end)
        d = distance(self._growing, values)
        mean, deviation = state.window.moments(batch, start, end)
        i, number = end - 1, batch.first + end - 1
        state.seen.append(Seen(int(batch.answers.ts[i]), d, mean, deviation, histogram(values)))
        del state.seen[:-KEPT]
        differs = d >= reference.critical - 1e-12
        state.in_a_row = state.in_a_row + 1 if differs else 0
        told: list[Told] = []
        if state.warned.level and state.fall and number - state.fall.number >= LATELY:
            title = f"Confidence of {self.spec.identity} hasn't fallen further in {LATELY} answers"
            told += self._say("drift_warning", state.warned, 0, batch, i, title, {"adwin": self._adwin(number)}, calm=1)
        level = 1 if state.in_a_row >= IN_A_ROW or (state.suspected.level and differs) else 0
        if self.spec.preset == "classic":
            level = 1 if state.in_a_row >= IN_A_ROW or (state.drifted.level and differs) else 0
            return told + self._differs("drift", state.drifted, level, batch, start, end, values)
        told += self._differs("drift_suspected", state.suspected, level, batch, start, end, values)
        return told + self._differs("drift", state.drifted, self._confirmed(mean, number), batch, start, end, values)

    def _confirmed(self, mean: float, number: int) -> int:
        """Level of the confirmed rule at a full window."""
        state, reference = self.state, self.reference
        assert reference is not None
        drop, needed = reference.mean - mean, self.needed
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

    def _differs(
        self,
        kind: str,
        condition: Condition,
        level: int,
        batch: Batch,
        start: int,
        end: int,
        values: NDArray[np.float32],
    ) -> list[Told]:
        if not level and not condition.level:
            return []
        reference, seen = self.reference, self.state.seen[-1]
        assert reference is not None
        way = "fell" if seen.mean < reference.mean else "rose"
        title = f"Confidence of {self.spec.identity} {way} from {reference.mean:.3f} to {seen.mean:.3f}"
        if not level:
            title = f"Confidence of {self.spec.identity} is as it was: {reference.mean:.3f}, now {seen.mean:.3f}"
        told = self._say(kind, condition, level, batch, end - 1, title, None)
        if told:
            told[0][1].evidence.update(self._compared(batch, start, end, values))
        return told

    def _compared(self, batch: Batch, start: int, end: int, values: NDArray[np.float32]) -> dict[str, object]:
        reference, state = self.reference, self.state
        assert reference is not None
        window = msgspec.structs.replace(state.window)
        window.add(batch, start, end)
        seen = state.seen[-1]
        d = seen.distance
        p = chance(round(d / reference.dependence**0.5, 9), len(reference), WINDOW)
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
            "statistic": round(d, 6),
            "critical": round(reference.critical, 6),
            "p_value": float(f"{p:.3g}"),
            "in_a_row": state.in_a_row,
            "needed_drop": round(self.needed, 6),
            "adwin": self._adwin(batch.first + end - 1),
            "histogram": {
                "from": 0,
                "to": 1,
                "reference": reference.histogram,
                "window": seen.histogram,
            },
            "lowest": [{"source": source, "confidence": round(one, 6)} for one, source in window.lowest],
        }

    def _adwin(self, number: int) -> dict[str, object] | None:
        """The last fall, seen from an answer."""
        fall = self.state.fall
        if fall is None:
            return None
        return {
            "source": fall.source,
            "ts": fall.ts,
            "records_ago": number - fall.number,
            "before": fall.before,
            "after": fall.after,
            "records_behind_cut": fall.since,
        }

    def _say(
        self,
        kind: str,
        condition: Condition,
        level: int,
        batch: Batch,
        i: int,
        title: str,
        evidence: dict[str, object] | None,
        calm: int = CALM,
    ) -> list[Told]:
        ts = int(batch.answers.ts[i])
        seen = condition.see(level, ts, calm)
        if seen is None:
            return []
        change = Change(
            kind=kind,
            subject=self.spec.identity,
            state=seen[0],
            severity="info" if seen[0] == "resolved" else "critical" if kind == "drift" else "warning",
            ts=ts,
            source=batch.answers.source(i),
            title=title,
            evidence={"model": self.spec.name, "version": self.spec.version, **(evidence or {})},
            reminder=seen[1],
        )
        return [(batch.first + i, change)]

    def page(self) -> dict[str, object]:
        """For people, JSON."""
        state, reference = self.state, self.reference
        now = [sum(column) for column in zip(*(seen.histogram for seen in state.seen), strict=True)] or [0] * BINS
        return {
            "reference": None if reference is None else reference.told() | {"critical": round(reference.critical, 6)},
            "collected": len(state.sample) // 4,
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


def _tells(cut: Cut, deviation: float, tied: float) -> bool:
    """Whether a find of ADWIN, which takes records for independent, says something where they are not."""
    noise = deviation * math.sqrt((tied - 1) * (1 / cut.since + 1 / (cut.width - cut.since)))
    return cut.before - cut.after >= SPREAD * noise
