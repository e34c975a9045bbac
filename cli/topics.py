"""`faust -A app topics`: the table of topics, and whether the broker agrees."""

from __future__ import annotations

from typing import Any

from cli.command import OperatorCommand
from cli.reach import reach
from cli.report import Report, columns
from cli.shapes import compare, retention


class Topics(OperatorCommand):
    """Show every topic: its key, direction and retention, and whether the broker has it as it must be.

    Exits with 1 when a topic has another shape than ours.
    """

    async def answer(self, **options: Any) -> Report:
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
            lines.append("Missing topics are created by the first worker that starts.")
        return Report({"topics": rows}, lines, ok=all(one.problem is None for one in found))
