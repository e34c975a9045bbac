"""All detectors of one version: what its owner calls, batch by batch, and keeps between two of them."""

from __future__ import annotations

import msgspec

from models.drift.answers import Answers
from models.drift.condition import Change
from models.drift.outcomes import Outcomes
from models.drift.spec import Spec


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured against: replaced as a whole when a reference is complete or a person resets it, else the very
    same object, so that `monitor.frozen is not before` tells that it has to be written."""


class State(msgspec.Struct, kw_only=True):
    """What changes with the stream: a few KB."""

    ts: int = 0
    """Event time of the newest answer."""
    source: str = ""
    """Of the newest answer."""


class Monitor:
    """The detectors of one version. The same answers in the same order give the same changes and the same state,
    however they are cut into batches, and whether or not state and reference went through msgpack in between."""

    def __init__(self, spec: Spec, state: State | None = None, frozen: Frozen | None = None) -> None:
        """state, frozen: as another Monitor of the version left them; both or neither."""
        self.spec = spec
        self.state = state or State()
        self.frozen = frozen or Frozen()

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers, in the order of event time. Returns what a person should hear of, in that order."""
        return []

    def judge(self, outcomes: Outcomes) -> list[Change]:
        """What came of earlier answers."""
        return []

    @property
    def began(self) -> int | None:
        return None

    def obey(self, command: object) -> list[Change]:
        return []

    def reset(self) -> list[Change]:
        """Begins anew with the next answer, since a person said so: its first 2,000 are the new reference. Returns
        the end of each condition that was open."""
        return []

    def page(self) -> dict[str, object]:
        """For people, JSON: confidence over time, histograms reference and now, detectors, open conditions."""
        return {}
