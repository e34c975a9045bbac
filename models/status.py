"""What a worker tells of one model, as a type: the shape of LiveModels.status(), on model-status and over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from models.limits import Figures
from models.precision import FP32


class VersionStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A version that computes on the worker."""

    version: str
    role: str
    since: int
    """ms since epoch: when it got its role there."""
    sha256: str = ""
    """Of its bytes."""
    precision: str = FP32
    """Which of its files computes."""
    memory_bytes: int | None = None
    """Of the accelerator, or of what is declared for versions: measured, or estimated. Absent where nobody counts."""
    figures: Figures = Figures()
    """What it has done in its role there, since the worker started."""


class CanaryStatus(VersionStatus, kw_only=True, omit_defaults=True):
    """A version that answers for some of the sessions."""

    share: float


class Loading(msgspec.Struct, omit_defaults=True):
    """A version on its way in."""

    version: str
    stage: str
    """downloading, verifying, warming."""
    share: float | None = None
    """Of its files that are here, while they are downloaded from a store elsewhere."""


class Status(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One model on one worker. The active version's fields stand beside those of the model; without one they are
    absent."""

    revision: int
    """Of the newest deployment that the worker has heard of."""
    wanted: str | None = None
    """The active version of that deployment."""
    frozen: bool = False
    version: str | None = None
    role: str | None = None
    since: int | None = None
    sha256: str | None = None
    precision: str = FP32
    memory_bytes: int | None = None
    figures: Figures | None = None
    canary: CanaryStatus | None = None
    shadow: list[VersionStatus] = []
    loading: Loading | None = None
    draining: list[str] = []
    """Versions that still compute for somebody who began on them."""
    held: bool = False
    """Its events wait: the version before had to go, so that the next one fits."""
    error: str | None = None
    """Why not all of the deployment is loaded there."""

    @property
    def active(self) -> VersionStatus | None:
        """The active version, as what the others are."""
        if self.version is None:
            return None
        return VersionStatus(
            version=self.version,
            role=self.role or "active",
            since=self.since or 0,
            sha256=self.sha256 or "",
            precision=self.precision,
            memory_bytes=self.memory_bytes,
            figures=self.figures or Figures(),
        )


def read(told: Any) -> Status | None:
    """A worker's own words; None for a form that this release doesn't know."""
    try:
        return msgspec.convert(told, Status)
    except msgspec.ValidationError:
        return None
