"""Whether what a version is asked still looks like what it was made from: one detector over all its features."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from models.drift.answers import Answers
from models.drift.condition import Change
from models.reference import FeatureReference


class InputState(msgspec.Struct):
    """What changes with the stream."""


class InputDrift:
    """Changes of kind `input_drift`, subject NAME@VERSION: one condition for all features together."""

    def __init__(self, subject: str, features: Mapping[str, FeatureReference], state: InputState | None = None) -> None:
        """subject: NAME@VERSION. features: the manifest's, one at least, in the order of the answers' columns."""
        self.state = state or InputState()

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers of the version; those without features change nothing."""
        raise NotImplementedError

    def page(self) -> dict[str, object]:
        """For people, JSON: each feature's last window beside its reference."""
        raise NotImplementedError
