"""What detectors say of one version."""

from __future__ import annotations

from typing import Literal

from models.drift.batch import Batch
from models.drift.condition import Change, State
from models.drift.spec import Spec

Severity = Literal["warning", "critical"]
Told = tuple[int, Change]
"""The number of the answer that decided, and what to say."""


class Voice:
    """Makes changes of what conditions tell."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def say(
        self,
        kind: str,
        seen: tuple[State, bool] | None,
        severity: Severity,
        title: str,
        evidence: dict[str, object],
        batch: Batch,
        i: int,
    ) -> list[Told]:
        """seen: what a condition told, None for nothing; i: the answer of the batch that decided. An end is info."""
        if seen is None:
            return []
        change = Change(
            kind=kind,
            subject=self.spec.identity,
            state=seen[0],
            severity="info" if seen[0] == "resolved" else severity,
            ts=int(batch.answers.ts[i]),
            source=batch.answers.source(i),
            title=title,
            evidence={"model": self.spec.name, "version": self.spec.version, **evidence},
            reminder=seen[1],
        )
        return [(batch.first + i, change)]
