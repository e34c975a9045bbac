"""`faust -A app agents`: what happens on which topic."""

from __future__ import annotations

import inspect
from typing import Any

from cli.command import OperatorCommand
from cli.report import Report, columns
from engine.agent import declared


class Agents(OperatorCommand):
    """Show every agent, the topic that it reads, and what it does."""

    async def answer(self, **options: Any) -> Report:
        """Needs no broker."""
        rows = [
            {
                "name": agent.name,
                "topic": self.ours.engine.topic_name(agent.topic),
                "help": (inspect.getdoc(agent.body) or "").partition("\n")[0],
            }
            for agent in sorted(declared, key=lambda agent: agent.name)
        ]
        return Report({"agents": rows}, columns(("name", "topic", "help"), [tuple(row.values()) for row in rows]))
