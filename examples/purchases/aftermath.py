"""What a run tells of a drift and of what was done about it: figures, and what was promised against what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from examples.purchases.data import DAY_MS
from examples.purchases.judged import Judged
from examples.purchases.labels import Quality
from examples.purchases.ledger import Ledger
from examples.purchases.story import Story

FALLBACK_S: Final = 2.0
"""From the alarm to the fallback on the worker."""
SAME: Final = 1e-5
"""Largest difference between an answer online and outside of the worker."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """A story that has ended, well or not."""

    ledger: Ledger
    story: Story
    live_at: Mapping[str, int]
    """fallback, promoted -> when the worker had it so, ms since epoch."""
    trained_s: float
    judged: Judged | None
    """None where nothing took over."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names, and what there is to say of them."""
        story, seen = self.story, self.story.seen
        if seen is None:
            yield "drift", f"none was seen of version {story.version}"
            return
        yield (
            "drift",
            f"day {self._day(seen.last)}: confidence of version {story.version} fell from {seen.before:.3f} to "
            f"{seen.now:.3f} (days {self._day(seen.first)} to {self._day(seen.last)}; KS distance {seen.distance:.3f}, "
            f"critical {seen.critical:.3f})",
        )
        if beside := self._beside():
            yield "", beside
        yield "response", self._response()
        if story.candidate is not None:
            yield "candidate", f"version {story.retrained}, {self.trained_s:.0f} s later: {story.reason}"
        if story.ended is not None and story.ended.alert is not None:
            yield "trial", self._trial(story.ended.alert.evidence)
        if self.judged is not None:
            yield from self._quality(self.judged)

    def claims(self) -> Iterator[tuple[bool, str]]:
        """What was promised, and whether it happened."""
        story, after = self.story, self.judged.after if self.judged else {}
        yield story.alarm is not None, f"the drift of version {story.version} was seen"
        took_s = self._fallback_s()
        yield took_s is not None and took_s <= FALLBACK_S, f"its fallback answered within {FALLBACK_S:g} s of the alarm"
        yield "promoted" in self.live_at, "a retrained version was promoted by its limits, and nobody had a hand in it"
        yield (
            self.judged is not None and self.judged.apart <= SAME,
            "what it answered is what it answers outside of the worker, on features recomputed",
        )
        better = [after[each].auc for each in (story.retrained or "", story.version) if each in after]
        yield (
            len(better) == 2 and better[0] > better[1],
            f"its AUC is better than that of version {story.version} on the very same purchases",
        )

    def _beside(self) -> str:
        """What else was told of the version."""
        first: dict[str, int] = {}
        for alert in self.ledger.alerts.values():
            version = alert.subject.partition("@")[2].partition("/")[0]
            if (
                version == self.story.version
                and alert.state == "opened"
                and alert.kind not in ("drift", "low_confidence")
            ):
                first[alert.kind] = min(alert.ts, first.get(alert.kind, alert.ts))
        told = sorted(first.items(), key=lambda one: one[1])
        return f"beside it: {', '.join(f'{kind} on day {self._day(ts)}' for kind, ts in told)}" if told else ""

    def _fallback_s(self) -> float | None:
        if self.story.alarm is None or "fallback" not in self.live_at:
            return None
        return (self.live_at["fallback"] - self.story.alarm.at) / 1e3

    def _response(self) -> str:
        deployment = self.story.answer.deployment if self.story.answer else None
        took_s = self._fallback_s()
        if deployment is None or took_s is None:
            return "NONE"
        return f"version {deployment.active} answered {took_s:.2f} s after the alarm; training was asked for"

    def _trial(self, evidence: Mapping[str, Any]) -> str:
        figures = evidence["figures"] or {}
        answers, failures = int(figures.get("answers", 0)), int(figures.get("failures", 0))
        compared, agreed = figures.get("compared", 0), figures.get("agreed", 0)
        told = f"{answers:,} answers for {evidence['share']:.0%} of the customers, {failures} errors"
        if compared:
            told += f", {agreed / compared:.1%} as version {self._active()} says"
        promoted = self.ledger.of(self.story.retrained or "", canary=False)
        if not len(promoted):
            return f"{told}; NOT promoted"
        return f"{told}; promoted by its limits on day {self._day(self.ledger.events[int(promoted[0])].ts)}"

    def _active(self) -> str:
        deployment = self.story.candidate.deployment if self.story.candidate else None
        return (deployment.active if deployment else None) or "-"

    def _quality(self, judged: Judged) -> Iterator[tuple[str, str]]:
        story, after = self.story, dict(judged.after)
        if judged.before is not None:
            yield "AUC before", f"version {story.version}: {_told(judged.before)}, up to the alarm, as it answered"
        mine = after.pop(story.retrained or "", None)
        if mine is not None:
            yield "AUC after", f"version {story.retrained}: {_told(mine)}, as it answered alone"
            others = ", ".join(f"version {version} {found.auc:.3f}" for version, found in sorted(after.items()))
            yield "", f"on the very same purchases would have had: {others}"

    def _day(self, ts: int) -> int:
        return (ts - self.ledger.events[0].ts) // DAY_MS


def _told(quality: Quality) -> str:
    return f"{quality.auc:.3f} on {quality.judged:,} purchases"
