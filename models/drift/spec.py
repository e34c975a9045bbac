"""What detectors need to know of a version; the owner keeps it, so that one that has left the store is judged too."""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec
from pydantic import TypeAdapter

from models.manifest import Kind, Manifest
from models.quality import Performance
from models.reference import FeatureReference

Preset = Literal["default", "classic"]

_FEATURES: Final = TypeAdapter(dict[str, FeatureReference])
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
    features: bytes = b""
    """JSON: what its inputs looked like, as the manifest says."""
    performance: bytes = b""
    """JSON: how its labels are judged, as the manifest says; empty where it says nothing."""
    calibrated: bool = False
    """Whether its probabilities can be believed."""
    preset: Preset = "default"
    """classic: the plain rule drives (`drift` instead of `drift_suspected`), and levels are the classic numbers."""

    @property
    def identity(self) -> str:
        """NAME@VERSION: the subject of what is said about it."""
        return f"{self.name}@{self.version}"

    @property
    def described(self) -> dict[str, FeatureReference]:
        """Its features, in the order of the answers' columns."""
        return _FEATURES.validate_json(self.features) if self.features else {}

    @property
    def quality(self) -> Performance | None:
        """How its labels are judged."""
        return Performance.model_validate_json(self.performance) if self.performance else None

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
            features=_FEATURES.dump_json(manifest.features) if manifest.features else b"",
            performance=manifest.performance.model_dump_json().encode() if manifest.performance else b"",
            calibrated=manifest.calibration is not None,
            preset=preset,
        )


def _picked(growing: list[float]) -> tuple[float, ...]:
    n = len(growing)
    if n <= SAMPLE:
        return tuple(growing)
    return tuple(growing[(2 * k + 1) * n // (2 * SAMPLE)] for k in range(SAMPLE))
