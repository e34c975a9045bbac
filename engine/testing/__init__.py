"""Runs an application's own agents in a test: in memory, or as a worker on a real broker (docs/testing.md)."""

from __future__ import annotations

from core.errors import TrialError
from engine.testing.memory import InMemory, in_memory
from engine.testing.trial import Output, Trial
from engine.testing.worker import OnBroker, on_broker

__all__ = ["InMemory", "OnBroker", "Output", "Trial", "TrialError", "in_memory", "on_broker"]
