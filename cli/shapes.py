"""Every topic of the application as it should be, beside what the broker has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from core.topics import ALL, Cleanup, TopicSpec, changelog
from engine import rights
from engine.admin import Shape, TopicAdmin
from engine.agent import declared
from engine.app import App
from engine.changelog import POSITIONS
from engine.connection import Connection


@dataclass(frozen=True, slots=True)
class Compared:
    """One topic. problem is None where the broker agrees, or has none yet."""

    name: str
    spec: TopicSpec[Any]
    there: bool
    problem: str | None


def specs(app: App) -> list[TopicSpec[Any]]:
    """All topics that a worker would create."""
    changelogs = [changelog(app.settings.app_id, table) for table in (*app.engine.tables, POSITIONS)]
    agents = [spec for agent in declared for spec in (agent.topic, *agent.outputs)]
    return [*ALL, *agents, *changelogs]


def topics(app: App) -> dict[str, TopicSpec[Any]]:
    """The same, as the broker names them."""
    return {app.settings.topic_prefix + spec.name: spec for spec in specs(app)}


async def compare(app: App, connection: Connection) -> list[Compared]:
    """Looks at every topic, changes none."""
    wanted = topics(app)
    await rights.check(connection, rights.Needed(dict.fromkeys(wanted, frozenset({rights.DESCRIBE}))))
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
        configs = await admin.configs([name for name in wanted if name in shapes]) or {}
    found = []
    for name, spec in wanted.items():
        problems = "; ".join(_problems(app, spec, shapes[name], configs.get(name, {}))) if name in shapes else ""
        found.append(Compared(name, spec, name in shapes, problems or None))
    return found


def _problems(app: App, spec: TopicSpec[Any], shape: Shape, config: dict[str, str]) -> Iterator[str]:
    settings = app.settings
    if shape.partitions != settings.partitions:
        yield f"it has {shape.partitions} partitions, HOMUNCULUS_PARTITIONS is {settings.partitions}"
    if not shape.ready:
        yield "a partition has no leader"
    if (policy := config.get("cleanup.policy", spec.cleanup.value)) != spec.cleanup.value:
        yield f"cleanup.policy is {policy}, it must be {spec.cleanup.value}"
    largest = int(config.get("max.message.bytes", settings.max_record))
    if largest < settings.max_record:
        yield f"max.message.bytes is {largest}, HOMUNCULUS_MAX_RECORD is {int(settings.max_record)}"


def retention(spec: TopicSpec[Any]) -> str:
    """How long it keeps, in words."""
    if spec.cleanup is Cleanup.COMPACT:
        return "newest of each key"
    return "for ever" if spec.retention is None else str(spec.retention).removesuffix(", 0:00:00")
