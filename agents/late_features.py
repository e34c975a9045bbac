"""Session features that began later than the sessions themselves: who asks for them, and since when they count."""

from __future__ import annotations

from collections.abc import Mapping

from core.events import Alert
from engine.engine import Engine
from models.manifest import Manifest
from models.status import Late
from tables.keeping import SessionShard
from tables.sessions import sessions


def late_features(engine: Engine, manifest: Manifest) -> dict[str, Late]:
    """Session features of a version that began later than the sessions of any of this worker's partitions."""
    names = [feature.name for feature in manifest.session_features]
    found: dict[str, Late] = {}
    for task in engine.tasks.values():
        shard = task.shards.get(sessions.name)
        for name, kept in shard.late(names).items() if isinstance(shard, SessionShard) else ():
            one = found.setdefault(name, Late())
            if kept.since is None:
                one.waiting += 1
            else:
                one.since = max(kept.since, one.since or 0)
    return found


def begins_late(source: str, version: str, late: Mapping[str, Late], ts: int) -> Alert:
    """What a version is asked of sessions that are older than what it is to know of them."""
    names = ", ".join(late)
    return Alert(
        id=f"{source}/features_late/{version}/opened",
        kind="features_late",
        severity="warning",
        state="opened",
        subject=version,
        ts=ts,
        title=f"{version} asks for what sessions haven't kept from their beginning on: {names} knows nothing of what "
        "they did before",
        evidence={"request": source, "features": list(late)},
    )
