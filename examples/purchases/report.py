"""What a run of the demo comes to: its figures, and what it promised against what happened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from examples.purchases.customers import Customer
from examples.purchases.data import PURCHASES
from examples.purchases.labels import Quality
from examples.purchases.ledger import Ledger
from examples.purchases.replay import UNDER_WAY

AUC: Final = 0.73
"""What every version must reach. Held against all purchases alone: a sample is too small to tell."""
ENOUGH: Final = 5000
"""Answers by which an AUC is known within .01."""
SHOWN: Final = 3
"""Dead letters that are shown."""
COURSE: Final = "1*2*1*[1c]*3*"
"""Who may answer in a partition, in which order: c is the candidate, to whom some customers go while it is tried."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run that has ended, in which version `new` was asked for on the way."""

    ledger: Ledger
    old: str
    new: str
    asked_at: float
    """When, on the ledger's clock."""
    change: int
    """Place of the first event that was sent after that."""
    customers: Sequence[Customer]
    quality: Mapping[str, Quality | None]
    """version -> as it answered purchases that no training saw."""
    joined: int
    """Labels that found their answer."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names, and what there is to say of them."""
        ledger = self.ledger
        missing = len(ledger.events) - ledger.answered
        yield "inputs", f"{len(ledger.events):,} purchases of {len(ledger.latest):,} customers"
        yield (
            "predictions",
            f"{ledger.answered:,}, {f'{missing:,} MISSING' if missing else 'none missing'}, "
            f"{ledger.repeats:,} repeated, {len(ledger.refused):,} dead letters",
        )
        for text in ledger.refused[:SHOWN]:
            yield "", text
        yield "labels", f"{ledger.labels:,} sent, when they were known; {self.joined:,} joined to their answers"
        yield "alerts", self._alerts()
        yield (
            "rate",
            f"{ledger.rate(self.change):,.0f} events/s up to day 180, with broker, worker, sender and reader on this "
            "machine",
        )
        p50, p99 = ledger.latency_ms(50), ledger.latency_ms(99)
        yield "latency", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms from sending to reading, up to {UNDER_WAY:,} under way"
        for version in ledger.versions:
            yield f"version {version}", self._answers_of(version)
        if self.new in ledger.first_at:
            took_ms = (ledger.first_at[self.new] - self.asked_at) * 1e3
            yield (
                "takeover",
                f"version {self.new} from event {ledger.first_event[self.new]:,} on, {took_ms:.0f} ms after it was "
                "asked for; by partition, from offset",
            )
            yield "", ", ".join(f"{n}: {first:,}" for n, first in ledger.first_offsets(self.new).items())

    def claims(self, *, repeats: bool) -> Iterator[tuple[bool, str]]:
        """What was promised, and whether it happened. repeats: whether the broker may make the worker repeat itself."""
        ledger = self.ledger
        yield ledger.complete and not ledger.refused, "every purchase was answered"
        if repeats:
            yield not ledger.contradictions, "no purchase has two answers: repeats, if any, carry the first one's id"
        else:
            yield not (ledger.contradictions or ledger.repeats), "no purchase was answered twice"
        clean = all(re.fullmatch(COURSE, course) for course in ledger.courses().values())
        yield (
            clean and self.new in ledger.first_at,
            "each partition went from one version to the next once, and no event was lost there",
        )
        missed = ledger.labels - self.joined
        yield missed == 0 < ledger.labels, f"every label found its answer{f' (NOT: {missed:,})' if missed else ''}"
        if len(ledger.events) == PURCHASES:
            found = [each for each in self.quality.values() if each is not None and each.judged >= ENOUGH]
            reached = bool(found) and all(each.auc >= AUC for each in found)
            yield reached, f"every version with {ENOUGH:,} answers that can be judged reaches an AUC of {AUC}"
        wrong = "; ".join(f"{each.session}: {', '.join(each.differs)}" for each in self.customers if each.differs)
        yield (
            bool(self.customers) and not wrong,
            f"the state of these customers equals a recount of their purchases{f' (NOT: {wrong})' if wrong else ''}",
        )

    def _alerts(self) -> str:
        alerts = self.ledger.alerts.values()
        reminders = sum(alert.id.endswith("/reminder") for alert in alerts)
        over = sum(alert.state == "resolved" for alert in alerts)
        kinds = Counter(a.kind for a in alerts if a.state != "resolved" and not a.id.endswith("/reminder"))
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return f"{len(alerts):,}{f': {told}' if told else ''}; {over} ends, {reminders} reminders"

    def _answers_of(self, version: str) -> str:
        ledger = self.ledger
        canary = len(ledger.of(version, canary=True))
        answers = f"{len(ledger.of(version)):,} answers{f' ({canary:,} of them on trial)' if canary else ''}"
        found = self.quality.get(version)
        if found is None:
            return f"{answers}, none of which can be judged"
        return f"{answers}; AUC {found.auc:.3f} online, by what followed within 60 days of {found.judged:,} of them"
