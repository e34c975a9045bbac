"""What a run of the demo comes to: its figures, and what it promised against what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from examples.purchases.customers import Customer
from examples.purchases.data import PURCHASES
from examples.purchases.labels import Quality
from examples.purchases.ledger import Ledger
from examples.purchases.replay import UNDER_WAY

AUC: Final = 0.73
"""What both versions must reach. Held against all purchases alone: a sample is too small to tell."""
SHOWN: Final = 3
"""Dead letters and alerts that are shown."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run that has ended, in which version `new` was asked for on the way."""

    ledger: Ledger
    old: str
    new: str
    asked_at: float
    """When, on the ledger's clock."""
    customers: Sequence[Customer]
    quality: Mapping[str, Quality]
    """version -> by the purchases that no training saw."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names, and what there is to say of them."""
        ledger = self.ledger
        missing = len(ledger.events) - ledger.answered
        yield "inputs", f"{len(ledger.events):,} purchases of {len(ledger.latest):,} customers"
        yield (
            "predictions",
            f"{ledger.answered:,}, {f'{missing:,} MISSING' if missing else 'none missing'}, "
            f"{ledger.repeats:,} repeated, {len(ledger.refused):,} dead letters, {len(ledger.alerts):,} alerts",
        )
        for text in (*ledger.refused[:SHOWN], *(f"{a.severity}: {a.title}" for a in ledger.alerts[:SHOWN])):
            yield "", text
        yield "rate", f"{ledger.rate:,.0f} events/s, with broker, worker, sender and reader on this machine"
        p50, p99 = ledger.latency_ms(50), ledger.latency_ms(99)
        yield "latency", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms from sending to reading, up to {UNDER_WAY:,} under way"
        for version in ledger.reigns:
            yield f"version {version}", self._answers_of(version)
        if self.new in ledger.reigns:
            took_ms = (ledger.first_at[self.new] - self.asked_at) * 1e3
            yield (
                "takeover",
                f"version {self.new} from event {ledger.first_event[self.new]:,} on, {took_ms:.0f} ms after it was "
                "asked for; by partition, from offset",
            )
            yield "", ", ".join(f"{n}: {reign.first:,}" for n, reign in sorted(ledger.reigns[self.new].items()))

    def claims(self, *, repeats: bool) -> Iterator[tuple[bool, str]]:
        """What was promised, and whether it happened. repeats: whether the broker may make the worker repeat itself."""
        ledger = self.ledger
        yield ledger.complete and not ledger.refused, "every purchase was answered"
        if repeats:
            yield not ledger.contradictions, "no purchase has two answers: repeats, if any, carry the first one's id"
        else:
            yield not (ledger.contradictions or ledger.repeats), "no purchase was answered twice"
        yield (
            ledger.clean_change(self.old, self.new),
            f"version {self.new} took over from version {self.old} once in each partition, and no event was lost there",
        )
        if len(ledger.events) == PURCHASES:
            reached = [v in self.quality and self.quality[v].auc >= AUC for v in (self.old, self.new)]
            yield all(reached), f"both versions reach an AUC of {AUC}, on purchases that no training saw"
        wrong = "; ".join(f"{each.session}: {', '.join(each.differs)}" for each in self.customers if each.differs)
        yield (
            bool(self.customers) and not wrong,
            f"the state of these customers equals a recount of their purchases{f' (NOT: {wrong})' if wrong else ''}",
        )

    def _answers_of(self, version: str) -> str:
        answers = f"{self.ledger.answers_of(version):,} answers"
        found = self.quality.get(version)
        if found is None:
            return f"{answers}, none of which can be judged"
        return f"{answers}; AUC {found.auc:.3f} online, by what followed within 60 days of {found.judged:,} of them"
