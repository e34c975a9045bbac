"""What detectors need to know of a version; the owner keeps it, so that one that has left the store is judged too."""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec

from models.manifest import Kind, Manifest

Preset = Literal["default", "classic"]

SAMPLE: Final = 2000
"""Of a manifest's confidences, evenly picked by rank: more say nothing more about its quantiles."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Made of a version's manifest; survives msgpack."""

    name: str
    version: str
    labels: tuple[str, ...] = ()
    """Empty of regressors."""
    confident: bool = True
    """Whether its answers have a confidence: not those of regressors without an interval."""
    low_confidence: float = 0.7
    """Below it the manifest calls an answer doubtful."""
    reference_confidence: tuple[float, ...] = ()
    """Growing: the manifest's sample, 2,000 at most."""
    preset: Preset = "default"
    """classic: the plain rule drives (`drift` instead of `drift_suspected`), and levels are the classic numbers."""

    @property
    def identity(self) -> str:
        """NAME@VERSION: the subject of what is said about it."""
        return f"{self.name}@{self.version}"

    @classmethod
    def of(cls, manifest: Manifest, preset: Preset = "default") -> Self:
        """What its manifest says; preset: what its deployment wants."""
        classifier = manifest.kind is Kind.CLASSIFIER
        return cls(
            name=manifest.name,
            version=manifest.version,
            labels=manifest.labels,
            confident=classifier or manifest.outputs.interval is not None,
            low_confidence=manifest.thresholds.low_confidence,
            reference_confidence=_picked(sorted(manifest.reference_confidence)),
            preset=preset,
        )


def _picked(growing: list[float]) -> tuple[float, ...]:
    n = len(growing)
    if n <= SAMPLE:
        return tuple(growing)
    return tuple(growing[(2 * k + 1) * n // (2 * SAMPLE)] for k in range(SAMPLE))
