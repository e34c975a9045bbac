"""All commands of ours, in place of those of Faust's that know only Faust's tables and models. Import for effect."""

from __future__ import annotations

from cli.agents import Agents
from cli.chat import Chat
from cli.command import without
from cli.doctor import Doctor
from cli.drift import Drift
from cli.models import Models
from cli.replay import Replay
from cli.reset import Reset
from cli.send import Send
from cli.state import state
from cli.tables import Tables
from cli.topics import Topics
from cli.worker import Worker

without("model", "clean-versions")

__all__ = [
    "Agents",
    "Chat",
    "Doctor",
    "Drift",
    "Models",
    "Replay",
    "Reset",
    "Send",
    "Tables",
    "Topics",
    "Worker",
    "state",
]
