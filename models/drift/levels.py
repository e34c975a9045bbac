"""How sure a version ought to be at least: its share of low confidence, and its mean over time."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.batch import UNIT, Batch
from models.drift.condition import Condition, State
from models.drift.excerpt import Excerpt
from models.drift.reference import WINDOW, ConfidenceReference, histogram
from models.drift.spec import Spec
from models.drift.voice import Severity, Told, Voice

SHARE: Final = (0.08, 0.20)
"""Of low confidence: warning and critical."""
MEAN: Final = (0.75, 0.65)
DROPS: Final = (0.05, 0.15)
"""Below the sample's mean, where MEAN would be nearer than that."""
QUANTILE: Final = 0.04
"""Of the sample: half of what is a warning, where low confidence is told by quantile."""
TOLERANCE: Final = 0.02
"""Below the quantile: a step that small is no loss, even where all scores are the same."""
LAST: Final = 5
"""Windows that a share is taken over: 1,000 answers."""
SPREAD: Final = 5.0
"""A share is told from the sample's by so many of its deviations."""
BLOCK: Final = 100
BLOCK_MS: Final = 10_000
"""A mean is looked at when it is over so many answers, and so much event time, at least."""
HELD_MS: Final = 120_000
HELD: Final = 5
"""Of event time, and blocks in a row: how long a mean is below until one says so."""
BLOCK_SPREAD: Final = 2.5
"""A block's mean is told from the sample's by so many of its deviations."""
FEWEST: Final = 200
"""Confidences in a manifest's sample that make it one."""
CALM: Final = 5
STAY: Final = 0.75
"""Of a threshold: a share above that keeps open what is open."""
SEVERITY: Final[tuple[Severity, ...]] = ("warning", "warning", "critical")
"""By level; an end is info whatever stands here."""


class Levels(NamedTuple):
    """What a version is held to."""

    basis: Literal["classic", "manifest", "first"]
    """The classic numbers, the manifest's sample, or its own first answers."""
    low: float
    """Below it a confidence counts as low."""
    share: tuple[float, float]
    mean: tuple[float, float]
    usual_share: float | None
    usual_mean: float | None
    """The sample's."""
    histogram: list[int] | None
    """Of the sample; with the classic numbers, of what there is to look at beside them."""


def levels(spec: Spec, reference: ConfidenceReference | None) -> Levels | None:
    """What a version is held to; None: nothing yet, since nothing tells how sure it usually is.

    Low is what the manifest calls low, or less: what only 4 % of the sample are below. So a model of which a third is
    always "low" isn't reported for it, while 8 % and 20 % keep their meaning.
    """
    if spec.preset == "classic":
        return Levels("classic", spec.low_confidence, SHARE, MEAN, None, None, _beside(spec, reference))
    if len(spec.reference_confidence) >= FEWEST:
        basis: Literal["manifest", "first"] = "manifest"
        sample = np.array(spec.reference_confidence, np.float32)
    elif reference is not None:
        basis, sample = "first", reference.growing
    else:
        return None
    tied = 1.0 if reference is None else reference.dependence
    low = max(min(spec.low_confidence, float(sample[int(QUANTILE * len(sample))]) - TOLERANCE), 0.0)
    usual = float(np.count_nonzero(sample < np.float32(low)) / len(sample))
    mean, deviation = float(sample.mean(dtype=np.float64)), float(sample.std(dtype=np.float64))
    chance = usual + SPREAD * (usual * (1 - usual) * tied / (LAST * WINDOW)) ** 0.5
    noise = BLOCK_SPREAD * deviation * (tied / BLOCK) ** 0.5
    return Levels(
        basis,
        low,
        (max(SHARE[0], chance), max(SHARE[1], chance)),
        (min(MEAN[0], mean - max(DROPS[0], noise)), min(MEAN[1], mean - max(DROPS[1], noise))),
        usual,
        mean,
        histogram(sample),
    )


def _beside(spec: Spec, reference: ConfidenceReference | None) -> list[int] | None:
    if reference is not None:
        return reference.histogram
    given = np.array(spec.reference_confidence, np.float32)
    return histogram(given) if len(given) else None


class LevelState(msgspec.Struct):
    """What changes with the stream."""

    lows: int = 0
    """Low confidences since the last full window."""
    last: list[int] = msgspec.field(default_factory=list)
    """Of the last five windows, oldest first."""
    window: Excerpt = msgspec.field(default_factory=Excerpt)
    """The one that isn't full."""
    windows: list[Excerpt] = msgspec.field(default_factory=list)
    """The last five."""
    block: Excerpt = msgspec.field(default_factory=Excerpt)
    """The one that isn't full."""
    count: int = 0
    total: int = 0
    """Of the block that isn't full: answers, and their sum in UNIT."""
    since: int = 0
    """The earliest event time in it."""
    mean: float | None = None
    """Of the last full block."""
    below: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """Blocks in a row with a mean below the thresholds of a warning, and critical."""
    below_since: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """Event time at which the first of them began."""
    share_low: Condition = msgspec.field(default_factory=Condition)
    mean_low: Condition = msgspec.field(default_factory=Condition)


class LevelRules:
    """Conditions `low_confidence_share` (of the last 1,000 answers, at each 200th) and `low_confidence_mean` (for two
    minutes of event time and five blocks): a warning, and worsened to critical."""

    def __init__(self, spec: Spec, state: LevelState, reference: ConfidenceReference | None) -> None:
        self.spec = spec
        self.state = state
        self._voice = Voice(spec)
        self._reference = reference
        self._early = levels(spec, None)
        self._late = levels(spec, reference)

    @property
    def levels(self) -> Levels | None:
        """What the next answer is held to."""
        return self._early if self._reference is None else self._late

    def fold(self, batch: Batch, reference: ConfidenceReference | None) -> list[Told]:
        """The next answers. reference: that of the version after these answers."""
        if reference is not self._reference:
            self._reference, self._late = reference, levels(self.spec, reference)
        n = len(batch)
        early = n if reference is None else min(max(reference.at - batch.first, 0), n)
        return self._fold(batch, 0, early, self._early) + self._fold(batch, early, n, self._late)

    def _fold(self, batch: Batch, start: int, end: int, held: Levels | None) -> list[Told]:
        if held is None or start == end:
            return []
        return self._shares(batch, start, end, held) + self._means(batch, start, end, held)

    def _shares(self, batch: Batch, start: int, end: int, held: Levels) -> list[Told]:
        state, told = self.state, list[Told]()
        low = batch.confidence < np.float32(held.low)
        at = start
        for full in range(at + WINDOW - (batch.first + at) % WINDOW, end + 1, WINDOW):
            state.last.append(state.lows + int(np.count_nonzero(low[at:full])))
            del state.last[:-LAST]
            state.window.add(batch, at, full, 1)
            state.windows = [*state.windows[1 - LAST :], state.window]
            state.window, state.lows, at = Excerpt(), 0, full
            share = sum(state.last) / (LAST * WINDOW)
            level = sum(share >= one for one in held.share)
            if level == 0 and state.share_low.level and share >= STAY * held.share[0]:
                level = 1
            if seen := state.share_low.see(level, int(batch.answers.ts[full - 1]), CALM):
                told += self._share(batch, full - 1, share, held, seen)
        state.lows += int(np.count_nonzero(low[at:end]))
        state.window.add(batch, at, end, 1)
        return told

    def _means(self, batch: Batch, start: int, end: int, held: Levels) -> list[Told]:
        state, told = self.state, list[Told]()
        ts, at, begun = batch.answers.ts[start:end], 0, 0
        forwards = not (ts[1:] < ts[:-1]).any()
        while at < len(ts):
            if not state.count:
                state.since = int(ts[at])
            full, state.since = self._full(ts[at:], forwards)
            until = at + full if full else len(ts)
            state.total += int(batch.sums[start + until] - batch.sums[start + at])
            state.count += until - at
            at = until
            if full:
                told += self._block(batch, start + begun, start + at - 1, held)
                state.count = state.total = 0
                state.block, begun = Excerpt(), at
        state.block.add(batch, start + begun, end)
        return told

    def _full(self, ts: NDArray[np.int64], forwards: bool) -> tuple[int, int]:
        """With how many of these answers the block is full, 0 for not at all; and the earliest event time in it: that
        of its first answer, unless time goes backwards. forwards: it doesn't among these."""
        since, least = self.state.since, max(BLOCK - self.state.count, 1) - 1
        if forwards and ts[0] >= since:
            end = max(int(ts.searchsorted(since + BLOCK_MS)), least)
            return end + 1 if end < len(ts) else 0, since
        begun = np.minimum(np.minimum.accumulate(ts), since)
        later = ts - begun >= BLOCK_MS
        later[:least] = False
        end = int(later.argmax())
        return (end + 1, int(begun[end])) if later[end] else (0, int(begun[-1]))

    def _block(self, batch: Batch, begun: int, i: int, held: Levels) -> list[Told]:
        """The block is full: its last answers are those from begun to i."""
        state = self.state
        mean = state.mean = state.total / (state.count * UNIT)
        ts = int(batch.answers.ts[i])
        level = 0
        for k, threshold in enumerate(held.mean):
            if mean >= threshold:
                state.below[k] = 0
                continue
            if not state.below[k]:
                state.below_since[k] = state.since
            state.below[k] = min(state.below[k] + 1, HELD)
            if state.below[k] == HELD and ts - state.below_since[k] >= HELD_MS:
                level = k + 1
        if level == 0 and state.mean_low.level and state.below[0]:
            level = 1
        seen = state.mean_low.see(level, ts, CALM)
        if seen is None:
            return []
        state.block.add(batch, begun, i + 1)
        return self._mean(batch, i, mean, level, held, seen)

    def _share(self, batch: Batch, i: int, share: float, held: Levels, seen: tuple[State, bool]) -> list[Told]:
        title = f"{share:.1%} of the last 1,000 answers of {self.spec.identity} have low confidence"
        evidence: dict[str, object] = {
            **Excerpt.joined(self.state.windows).told(batch, i, held.histogram),
            "basis": held.basis,
            "share": round(share, 6),
            "usual_share": held.usual_share,
            "thresholds": {"warning": round(held.share[0], 6), "critical": round(held.share[1], 6)},
            "low_below": round(held.low, 6),
        }
        severity = SEVERITY[self.state.share_low.level]
        return self._voice.say("low_confidence_share", seen, severity, title, evidence, batch, i)

    def _mean(
        self, batch: Batch, i: int, mean: float, level: int, held: Levels, seen: tuple[State, bool]
    ) -> list[Told]:
        state, ts = self.state, int(batch.answers.ts[i])
        title = f"Mean confidence of {self.spec.identity} is {mean:.3f}"
        if level:
            title += f", below {held.mean[level - 1]:.3f} for {(ts - state.below_since[level - 1]) // 1000} s"
        evidence: dict[str, object] = {
            **state.block.told(batch, i, held.histogram),
            "basis": held.basis,
            "mean": round(mean, 6),
            "usual_mean": held.usual_mean,
            "thresholds": {"warning": round(held.mean[0], 6), "critical": round(held.mean[1], 6)},
            "below_since_ts": state.below_since[level - 1] if level else None,
        }
        return self._voice.say("low_confidence_mean", seen, SEVERITY[state.mean_low.level], title, evidence, batch, i)

    def page(self) -> dict[str, object]:
        """For people, JSON."""
        state, held = self.state, self.levels
        named = {} if held is None else held._asdict()
        return {
            "held_to": {name: one for name, one in named.items() if name != "histogram"} or None,
            "share": sum(state.last) / (LAST * WINDOW) if state.last else None,
            "mean": state.mean,
        }
