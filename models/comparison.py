"""The versions of one model side by side: what each worker tells of them, added up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import msgspec

from models.limits import Figures
from models.status import CanaryStatus, Status, VersionStatus


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A version in its role, on all workers together."""

    version: str
    role: str
    share: float | None
    """Of the sessions, which it answers for; null of a shadow."""
    since: int
    """ms since epoch: when the first worker gave it the role."""
    on: list[str]
    """Workers that it computes on."""
    figures: Figures
    """What it has done in its role; a worker that restarts begins anew."""
    error: float | None
    """Share of its events that it gave no usable score for; null while there were none."""
    confidence: float | None
    """Mean of the answers that have one."""
    low: float | None
    """Share of low confidence among them."""
    agreement: float | None
    """Share of the compared events for which the version beside it said the same; null while none was compared."""
    accuracy: float | None
    """Share of its labelled answers that were right; null while no label has come."""
    loss: float | None
    """Their log loss; of regressors the mean squared error."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    revision: int
    """The newest that a worker follows: the sides are those of the workers that do."""
    frozen: bool
    sides: list[Side]
    """The active version, the canary, then shadows; more than one active while workers swap."""
    behind: list[str]
    """Workers that follow an older revision."""

    def canary(self, version: str) -> Side | None:
        """The side of a canary, where it is on any worker."""
        return next((side for side in self.sides if (side.role, side.version) == ("canary", version)), None)


@dataclass(slots=True)
class _Sum:
    """A side while it is added up."""

    share: float | None
    told: list[VersionStatus] = field(default_factory=list)
    on: list[str] = field(default_factory=list)


def compare(told: Mapping[str, Status]) -> Comparison:
    """told: worker -> what it tells of the model; one worker at least."""
    newest = max(status.revision for status in told.values())
    sums: dict[tuple[str, str], _Sum] = {}
    for worker, status in sorted(told.items()):
        if status.revision == newest:
            for one, share in _roles(status):
                found = sums.setdefault((one.role, one.version), _Sum(share))
                found.told.append(one)
                found.on.append(worker)
    return Comparison(
        revision=newest,
        frozen=any(status.frozen for status in told.values() if status.revision == newest),
        sides=[_side(role, version, one) for (role, version), one in sorted(sums.items(), key=_order)],
        behind=sorted(worker for worker, status in told.items() if status.revision < newest),
    )


def _roles(status: Status) -> Iterator[tuple[VersionStatus, float | None]]:
    canary: CanaryStatus | None = status.canary
    if (active := status.active) is not None:
        yield active, 1.0 - (canary.share if canary else 0.0)
    if canary is not None:
        yield canary, canary.share
    for shadow in status.shadow:
        yield shadow, None


def _order(item: tuple[tuple[str, str], _Sum]) -> tuple[int, str]:
    (role, version), _ = item
    return ("active", "canary").index(role) if role in ("active", "canary") else 2, version


def _side(role: str, version: str, one: _Sum) -> Side:
    figures = reduce(add, (told.figures for told in one.told), Figures())
    return Side(
        version=version,
        role=role,
        share=one.share,
        since=min(told.since for told in one.told),
        on=one.on,
        figures=figures,
        error=figures.error,
        confidence=figures.mean_confidence,
        low=figures.low_share,
        agreement=figures.agreement,
        accuracy=figures.accuracy,
        loss=figures.mean_loss,
    )
