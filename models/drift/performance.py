"""Whether a version is as good as it was, once labels come: figures by event time, and a judge of them.

Outcomes are summed in windows of event time (an hour, or what the manifest says), 24 of them: the oldest that has been
judged makes room, else the two that are closest together become one. The clock is the newest event time that has a
label. Whenever it enters another window, those that are over, and whose labels are known whatever they are, are judged
in order, together until they have 1,000 labels, or 300 in a week and more. The first two such groups are the reference,
unless the manifest declares one. A figure that is worse by 3 deviations and by more than next to nothing, in two
judgements in a row, is told. Labels and corrections that come later still change the figures of page(), not what was
said. What it finds, and when: docs/inputs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from models.drift.condition import Change, Condition, State
from models.drift.outcomes import Outcome
from models.drift.tally import Sums, Tally, summed
from models.drift.verdict import CRITICAL, QUIET, Verdict, verdicts
from models.drift.windows import Window, Windows, worst
from models.quality import Performance, Quality

ENOUGH: Final = ((1000, 0), (300, 7 * 24 * 3600 * 1000))
"""(labels, ms of event time from the first to the end): what windows must have of both to be judged. Of 1,000 labels an
accuracy of .9 is known within a point."""
REFERENCE: Final = 2
"""Groups of windows, the first ones, that make a reference."""
ROW: Final = 2
"""Judgements in a row that are bad, before a person hears of it."""
CALM: Final = 2
"""Judgements in a row in which every figure is as good as ever, before it is well again."""


class Judgement(msgspec.Struct, array_like=True):
    """The newest."""

    start: int
    end: int
    labels: int
    verdicts: list[Verdict]


class PerformanceState(msgspec.Struct, kw_only=True):
    """What changes with the labels: some 20 KB for two labels."""

    windows: list[Window] = msgspec.field(default_factory=list)
    """By time; none overlaps another."""
    clock: int = 0
    """The newest event time with a label."""
    frontier: int = 0
    """Up to here all is judged."""
    first: list[list[Any]] = msgspec.field(default_factory=list)
    """Sums of the reference's groups, while it is collected."""
    reference: list[Any] | None = None
    """Those sums once they are enough; where the manifest declares figures there are none."""
    judgements: int = 0
    newest: Judgement | None = None
    levels: list[int] = msgspec.field(default_factory=list)
    """How bad the last ROW judgements were."""
    unusable: int = 0
    """Outcomes that say nothing: NaN, or another number of scores than labels."""
    too_late: int = 0
    """Outcomes of a time that isn't kept any more."""
    condition: Condition = msgspec.field(default_factory=Condition)


class PerformanceDrift:
    """Changes of kind `performance_drift`, subject NAME@VERSION."""

    def __init__(
        self, subject: str, labels: int, performance: Performance | None = None, state: PerformanceState | None = None
    ) -> None:
        """subject: NAME@VERSION. labels: of the version, 0 of regressors. performance: the manifest's. state: what
        another one of this version left; it goes on in it."""
        self._subject = subject
        self._tally = Tally(labels)
        self._performance = performance or Performance()
        self._window_ms = int(self._performance.window_s * 1000)
        self.state = state or PerformanceState()
        self._windows = Windows(self.state.windows, self._tally, self._window_ms)

    def judge(self, outcomes: Iterable[Outcome]) -> list[Change]:
        """What came of predictions, in the order in which it became known."""
        state = self.state
        changes: list[Change] = []
        for outcome in outcomes:
            if not self._tally.usable(outcome):
                state.unusable += 1
                continue
            if outcome.ts // self._window_ms > state.clock // self._window_ms:
                state.clock = outcome.ts
                changes += self._look(outcome)
            state.clock = max(state.clock, outcome.ts)
            state.too_late += not self._windows.add(outcome, state.frontier)
        return changes

    def page(self) -> dict[str, object]:
        """For people, JSON: the figures of each window as they are now, corrections included, and the reference's."""
        state, tally = self.state, self._tally
        return {
            "open": bool(state.condition.level),
            "level": state.condition.level,
            "since": state.condition.since or None,
            "judgements": state.judgements,
            "newest": None if state.newest is None else _of(state.newest),
            "reference": self._reference_page(),
            "kept": self.kept(),
            "windows": [
                {"first": window.start, "last": window.end - 1, "judged": window.judged, "figures": figures(quality)}
                for window in state.windows
                if (quality := tally.quality(window.sums)) is not None
            ],
            "reliability": tally.reliability(summed([w.sums for w in state.windows]))
            if tally.labels and state.windows
            else [],
            "unusable": state.unusable,
            "too_late": state.too_late,
        }

    def kept(self) -> dict[str, object] | None:
        """For people, JSON: the figures of all windows together, and of what event times they are; None: no label."""
        windows = self.state.windows
        quality = self.quality
        if quality is None:
            return None
        return {"first": windows[0].start, "last": windows[-1].end - 1, "figures": figures(quality)}

    @property
    def quality(self) -> Quality | None:
        """Of all windows together; None: no label has come."""
        windows = self.state.windows
        return self._tally.quality(summed([window.sums for window in windows])) if windows else None

    def _reference_page(self) -> dict[str, object] | None:
        if (declared := self._performance.measured) is not None:
            return {"from": "manifest", "figures": figures(declared)}
        known = self.state.reference or (summed(self.state.first) if self.state.first else None)
        quality = self._tally.quality(known) if known else None
        if quality is None:
            return None
        return {"from": "first windows", "complete": self.state.reference is not None, "figures": figures(quality)}

    def _look(self, outcome: Outcome) -> list[Change]:
        """Judges what can be judged now that the clock has moved to this outcome."""
        state, known = self.state, self.state.clock - int(self._performance.labels_after_s * 1000)
        changes: list[Change] = []
        group: list[Window] = []
        for window in state.windows:
            if window.judged:
                continue
            if window.end > known:
                break
            group.append(window)
            labels, age = sum(each.sums[0] for each in group), window.end - group[0].start
            if any(labels >= enough and age >= old for enough, old in ENOUGH):
                if change := self._judge(group, outcome):
                    changes.append(change)
                group = []
        return changes

    def _judge(self, group: Sequence[Window], outcome: Outcome) -> Change | None:
        state = self.state
        for window in group:
            window.judged = True
        state.frontier = group[-1].end
        sums = summed([window.sums for window in group])
        reference = self._performance.measured or state.reference
        if reference is None:
            state.first.append(sums)
            if len(state.first) == REFERENCE:
                state.reference, state.first = summed(state.first), []
            return None
        found = verdicts(self._tally, sums, reference)
        state.judgements += 1
        state.newest = Judgement(group[0].start, group[-1].end, sums[0], found)
        state.levels = [*state.levels[1 - ROW :], max((verdict.level for verdict in found), default=0)]
        told = self._seen(found, outcome.ts)
        if told is None:
            return None
        wrong = worst([one for window in group for one in window.wrong])
        return self._told(*told, found, sums, reference, [source for _, source in wrong], outcome)

    def _seen(self, found: Sequence[Verdict], ts: int) -> tuple[State, bool] | None:
        condition, levels = self.state.condition, self.state.levels
        sure = min(levels) if len(levels) == ROW else 0
        if not condition.level:
            return condition.see(levels[-1] if sure else 0, ts, CALM)
        if levels[-1] or any(verdict.z >= QUIET for verdict in found):
            sure = max(sure, 1)  # bad once more, or neither bad nor well: it goes on
        return condition.see(sure, ts, CALM)

    def _told(
        self,
        state: State,
        reminder: bool,
        found: Sequence[Verdict],
        sums: Sums,
        reference: Sums | Quality,
        wrong: list[str],
        outcome: Outcome,
    ) -> Change:
        newest, tally = self.state.newest, self._tally
        assert newest is not None
        theirs = reference if isinstance(reference, Quality) else tally.quality(reference)
        ours = tally.quality(sums)
        evidence: dict[str, object] = {
            "window": {"first": newest.start, "last": newest.end - 1, "labels": newest.labels},
            "figures": figures(ours) if ours else {},
            "reference": figures(theirs) if theirs else {},
            "reference_from": "manifest" if isinstance(reference, Quality) else "first windows",
            "verdicts": [_shown(verdict) for verdict in found],
            "examples": wrong,
        }
        if tally.labels:
            evidence["reliability"] = {
                "window": tally.reliability(sums),
                "reference": [] if isinstance(reference, Quality) else tally.reliability(reference),
            }
        far = self.state.condition.level > 1
        return Change(
            kind="performance_drift",
            subject=self._subject,
            state=state,
            severity="info" if state == "resolved" else "critical" if far else "warning",
            ts=outcome.ts,
            source=outcome.source,
            title=self._title(state, found),
            evidence=evidence,
            reminder=reminder,
        )

    def _title(self, state: State, found: Sequence[Verdict]) -> str:
        if state == "resolved":
            return f"{self._subject}: it is as good as it was again, as labels tell"
        bad = [verdict for verdict in found if verdict.bad] or sorted(found, key=lambda verdict: -verdict.z)[:1]
        told = ", ".join(f"{_NAMES[one.metric]} {one.window:.3g} against {one.reference:.3g}" for one in bad)
        return f"{self._subject}: worse than it was, as labels tell: {told}"


_NAMES: Final = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "calibration": "probability above accuracy by",
    "mae": "mean absolute error",
    "bias": "bias",
}


def figures(quality: Quality) -> dict[str, float]:
    """JSON: those that there are."""
    return {
        name: value if name == "rows" else float(f"{value:.6g}")
        for name, value in quality.model_dump(exclude_none=True).items()
    }


def _shown(verdict: Verdict) -> dict[str, object]:
    return {
        "metric": verdict.metric,
        "window": float(f"{verdict.window:.6g}"),
        "reference": float(f"{verdict.reference:.6g}"),
        "worse": float(f"{verdict.worse:.6g}"),
        "deviations": round(verdict.z, 2),
        "critical": CRITICAL,
        "bad": verdict.bad,
    }


def _of(judgement: Judgement) -> dict[str, object]:
    return {
        "first": judgement.start,
        "last": judgement.end - 1,
        "labels": judgement.labels,
        "verdicts": [_shown(verdict) for verdict in judgement.verdicts],
    }
