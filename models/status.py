"""What a worker tells of one model, as a type: the shape of LiveModels.status(), on model-status and over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from models.limits import Figures
from models.precision import FP32


class Late(msgspec.Struct, omit_defaults=True):
    """A session feature that the worker keeps for a shorter time than its sessions: those that had been there before
    have none of what happened until then."""

    since: int | None = None
    """ms since epoch: when the first observation that is in it was written to Kafka, in the partition that began last.
    None: none has come yet."""
    waiting: int = 0
    """Partitions of the worker in which none has come yet."""


class Filling(msgspec.Struct):
    """How far a worker is with the backfill of a model's session features, over its partitions."""

    revision: int
    """That asked for it."""
    partitions: int
    """Of the worker, that are open."""
    done: int = 0
    """Of these, in which the features count what was filled."""
    share: float = 0.0
    """Of the observations of all of them that are through; 1 when all is done."""
    left: int = 0
    """Observations to go, in the partitions that are begun."""
    eta_s: float | None = None
    """Seconds for these, as fast as it went lately."""
    since: int | None = None
    """ms since epoch: when the oldest observation that is there was written, in the partition that begins last."""
    error: str | None = None
    """What it waits for."""


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
    late_features: dict[str, Late] = {}
    """Session features of the version that began later than the sessions, by name."""


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
    late_features: dict[str, Late] = {}
    canary: CanaryStatus | None = None
    shadow: list[VersionStatus] = []
    loading: Loading | None = None
    draining: list[str] = []
    """Versions that still compute for somebody who began on them."""
    held: bool = False
    """Its events wait: the version before had to go, so that the next one fits."""
    error: str | None = None
    """Why not all of the deployment is loaded there."""
    backfill: Filling | None = None
    """The newest that was asked for."""

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
            late_features=self.late_features,
        )


def read(told: Any) -> Status | None:
    """A worker's own words; None for a form that this release doesn't know."""
    try:
        return msgspec.convert(told, Status)
    except msgspec.ValidationError:
        return None
