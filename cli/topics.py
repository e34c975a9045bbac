"""`faust -A app topics`: the table of topics, and whether the broker agrees; `topics create` makes the missing ones."""

from __future__ import annotations

from typing import Any

from faust.cli.base import argument

from cli.command import OperatorCommand, offering
from cli.reach import reach
from cli.report import Report, columns
from cli.shapes import compare, retention, specs
from core.errors import UsageError
from engine.admin import ensure_topics


class Topics(OperatorCommand):
    """Show every topic: its key, direction and retention, and whether the broker has it as it must be.

    topics check: the same. topics create: create those that are missing, as the first worker would. Exits with 1 when a
    topic has another shape than ours.
    """

    options = offering(argument("action", required=False))

    async def answer(self, action: str | None = None, **options: Any) -> Report:
        """Raises UsageError for another action, TopicError for a topic of another shape that create finds."""
        if action in {None, "check"}:
            return await self._compared()
        if action == "create":
            return await self._create()
        raise UsageError(f"topics {action}: there is `topics check` and `topics create`")

    async def _create(self) -> Report:
        settings = self.ours.settings
        connection = await reach(settings)
        created = await ensure_topics(connection.bootstrap, specs(self.ours), settings, connection.security)
        made = [f"Created {name} ({settings.partitions} partitions)." for name in sorted(created)]
        return Report({"created": sorted(created)}, made or ["Every topic is there."])

    async def _compared(self) -> Report:
        """Compares what the worker would create with what there is."""
        settings = self.ours.settings
        found = await compare(self.ours, await reach(settings))
        rows = [
            {
                "name": one.name,
                "direction": one.spec.direction.value,
                "key": one.spec.key,
                "cleanup": one.spec.cleanup.value,
                "retention": retention(one.spec),
                "partitions": settings.partitions,
                "state": "wrong" if one.problem else "ok" if one.there else "missing",
                "problem": one.problem,
            }
            for one in found
        ]
        heads = ("name", "direction", "key", "retention", "partitions", "broker")
        lines = columns(
            heads,
            [
                (r["name"], r["direction"], r["key"], r["retention"], r["partitions"], r["problem"] or r["state"])
                for r in rows
            ],
        )
        if any(row["state"] == "missing" for row in rows):
            lines.append("Missing topics are created by the first worker that starts, or by `topics create`.")
        return Report({"topics": rows}, lines, ok=all(one.problem is None for one in found))
