"""All that a worker knows of one model: what is wanted, who computes, what is on its way, and what it tells of that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.events import Deployment
from models.exchange import Exchange
from models.manifest import Kind, Manifest
from models.precision import FP32
from models.routing import Routing
from models.status import Filling, Late
from models.swap import Course, Stage
from models.version import LiveVersion, Load

LateOf = Callable[[Manifest], Mapping[str, Late]]


@dataclass(slots=True)
class Deployed:
    """All that this worker knows of one model."""

    wanted: Deployment
    routing: Routing = field(default_factory=Routing)
    loading: Course | None = None
    draining: list[LiveVersion] = field(default_factory=list)
    exchange: Exchange | None = None
    """While its events wait for the next version, since the one before had to make room for it."""
    spared: set[Load] = field(default_factory=set)
    """What failed to load in an exchange: the version that was brought back doesn't make room for it again before
    somebody asks for it anew."""

    error: str | None = None
    """Why not all of it is loaded."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def kind(self) -> Kind | None:
        """None before the first of its versions has been loaded here."""
        return next((version.manifest.kind for version in self.loaded), None)

    @property
    def loaded(self) -> list[LiveVersion]:
        """Those that compute, those that wait meanwhile, and those that drain."""
        drain = [version for version in self.draining if version.course.stage is Stage.DRAINING]
        return [*self.routing, *(self.exchange.kept if self.exchange else ()), *drain]

    def status(self, late: LateOf, filling: Filling | None) -> dict[str, Any]:
        """What model-status says of it. late: of a version, what began late; filling: the backfill under way."""
        routing, loading, deployment = self.routing, self.loading, self.wanted
        shown = {
            **(_told(routing.active, late) if routing.active else {}),
            "canary": routing.canary and _told(routing.canary, late) | {"share": routing.share},
            "shadow": [_told(shadow, late) for shadow in routing.shadows] or None,
            "revision": deployment.revision,
            "wanted": deployment.active,
            "frozen": deployment.frozen or None,
            "loading": loading and _coming(loading),
            "draining": [v.version for v in self.draining if v.course.stage is Stage.DRAINING] or None,
            "held": self.exchange is not None or None,
            "error": self.error,
            "backfill": filling and msgspec.to_builtins(filling),
        }
        return {name: value for name, value in shown.items() if value is not None}


def answering(routing: Routing) -> str:
    """Who answers, in words."""
    if routing.active is None:
        return "none answers"
    said = f"{routing.active.course.who} answers"
    if routing.canary is not None:
        said += f", {routing.canary.version} for {routing.share:.3g} of the sessions"
    return said + "".join(f", {shadow.version} in its shadow" for shadow in routing.shadows)


def _coming(course: Course) -> dict[str, Any]:
    shown = {"version": course.who.partition("@")[2], "stage": course.stage.value, "share": course.share}
    return {name: value for name, value in shown.items() if value is not None}


def _told(version: LiveVersion, late: LateOf) -> dict[str, Any]:
    course = version.course
    shown = {
        "version": version.version,
        "role": course.stage.value,
        "since": course.since,
        "sha256": version.identity.partition("/")[0],
        "precision": None if version.precision == FP32 else version.precision,
        "memory_bytes": version.memory,
        "figures": msgspec.to_builtins(version.figures),
        "late_features": {name: msgspec.to_builtins(one) for name, one in late(version.manifest).items()} or None,
    }
    return {name: value for name, value in shown.items() if value is not None}
