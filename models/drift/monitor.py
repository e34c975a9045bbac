"""All detectors of one version: what its owner calls, batch by batch, and keeps between two of them."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.batch import LONGEST, Batch
from models.drift.condition import Change, Condition
from models.drift.confidence import ConfidenceDrift, ConfidenceState
from models.drift.expected import ExpectedPerformance, ExpectedState
from models.drift.inputs import InputDrift, InputState
from models.drift.labels import LabelDrift, LabelReference, LabelState
from models.drift.levels import LevelRules, LevelState
from models.drift.outcomes import Outcomes
from models.drift.performance import PerformanceDrift, PerformanceState
from models.drift.reference import ConfidenceReference
from models.drift.spec import Spec
from models.drift.trail import Trail

KINDS: Final = (
    "drift",
    "drift_suspected",
    "drift_warning",
    "low_confidence_share",
    "low_confidence_mean",
    "label_drift",
    "input_drift",
    "performance_expected",
    "performance_drift",
)
"""Of conditions."""
RESET: Final = "A person has reset the reference: what was open is over, and its next answers are what it is held to"


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured against: replaced as a whole when a reference is complete or a person resets it, else the very
    same object, so that `monitor.frozen is not before` tells that it has to be written."""

    confidence: ConfidenceReference | None = None
    labels: LabelReference | None = None


class State(msgspec.Struct, kw_only=True):
    """What changes with the stream: a few KB."""

    answers: int = 0
    """Of the version since it began, or since the last reset, with a usable confidence where it has any."""
    unusable: int = 0
    """Answers whose confidence wasn't finite: nothing else is made of them."""
    ts: int = 0
    """Event time of the newest answer."""
    source: str = ""
    """Of the newest answer."""
    confidence: ConfidenceState = msgspec.field(default_factory=ConfidenceState)
    levels: LevelState = msgspec.field(default_factory=LevelState)
    labels: LabelState = msgspec.field(default_factory=LabelState)
    trail: Trail = msgspec.field(default_factory=Trail)
    inputs: InputState | None = None
    expected: ExpectedState | None = None
    performance: PerformanceState | None = None
    since: int = 0
    """Event time of the reset, if there was one: of answers up to then some labels had come before, and those that
    come later are of one kind."""
    judged: dict[str, int] = msgspec.field(default_factory=dict)
    """TOPIC/PARTITION of feedback -> offset of the newest record that has been judged."""

    def conditions(self) -> dict[str, Condition]:
        """By their kind; all of them."""
        found = {
            "drift": self.confidence.drifted,
            "drift_suspected": self.confidence.suspected,
            "drift_warning": self.confidence.warned,
            "low_confidence_share": self.levels.share_low,
            "low_confidence_mean": self.levels.mean_low,
            "label_drift": self.labels.drifted,
        }
        others = {
            "input_drift": self.inputs,
            "performance_expected": self.expected,
            "performance_drift": self.performance,
        }
        return found | {kind: state.condition for kind, state in others.items() if state is not None}


class Monitor:
    """The detectors of one version. The same answers in the same order give the same changes and the same state,
    however they are cut into batches, and whether or not state and reference went through msgpack in between."""

    def __init__(self, spec: Spec, state: State | None = None, frozen: Frozen | None = None) -> None:
        """state, frozen: as another Monitor of the version left them; both or neither."""
        self.spec = spec
        self._begin(state or State(), frozen or Frozen())

    def _begin(self, state: State, frozen: Frozen) -> None:
        self._state, self.frozen = state, frozen
        spec, described = self.spec, self.spec.described
        self.inputs = InputDrift(spec.identity, described, state.inputs) if described else None
        believed = spec.calibrated and len(spec.labels) >= 2
        self.expected = ExpectedPerformance(spec.identity, len(spec.labels), state.expected) if believed else None
        self.performance = PerformanceDrift(spec.identity, len(spec.labels), spec.quality, state.performance)
        self.confidence = ConfidenceDrift(self.spec, state.confidence, frozen.confidence)
        self.levels = LevelRules(self.spec, state.levels, frozen.confidence)
        self.labels = LabelDrift(self.spec, state.labels, frozen.labels)

    @property
    def state(self) -> State:
        """As of now."""
        return msgspec.structs.replace(
            self._state,
            inputs=self.inputs.state if self.inputs is not None else None,
            expected=self.expected.state if self.expected is not None else None,
            performance=self.performance.state,
        )

    @property
    def conditions(self) -> dict[str, Condition]:
        """By their kind; all of them, as the detectors have them."""
        found = self._state.conditions() | {"performance_drift": self.performance.state.condition}
        if self.inputs is not None:
            found["input_drift"] = self.inputs.condition
        if self.expected is not None:
            found["performance_expected"] = self.expected.state.condition
        return found

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers, in the order of event time. Returns what a person should hear of, in that order."""
        if not len(answers):
            return []
        self._state.ts, self._state.source = int(answers.ts[-1]), answers.source(len(answers) - 1)
        told = self._sure(answers)
        if self.expected is not None:
            told += self.expected.fold(answers)
        if len(told) > 1:
            told.sort(key=lambda change: answers.place(change.source))
        return told if self.inputs is None else self._beside(self.inputs, answers, told)

    def _beside(self, inputs: InputDrift, answers: Answers, told: list[Change]) -> list[Change]:
        """Those changes, each with what had changed most in the inputs by then, and the inputs' own between them."""
        found: list[Change] = []
        at = 0
        for change in told:
            end = answers.place(change.source) + 1
            found += inputs.fold(answers.take(slice(at, end)))
            found.append(_with(change, inputs))
            at = end
        return found + inputs.fold(answers.take(slice(at, None)))

    def _sure(self, answers: Answers) -> list[Change]:
        """What confidences and labels say."""
        if not self.spec.confident or answers.confidence is None:
            self._state.answers += len(answers)
            return []
        told: list[Change] = []
        usable, confidence = self._usable(answers, answers.confidence)
        for start in range(0, len(confidence), LONGEST):
            end = start + LONGEST
            part = usable if len(confidence) <= LONGEST else usable.take(slice(start, end))
            told += self._fold(Batch.of(part, confidence[start:end], self._state.answers))
        return told

    def _usable(self, answers: Answers, confidence: NDArray[np.float32]) -> tuple[Answers, NDArray[np.float32]]:
        """Without those whose confidence isn't finite; the others within [0, 1]."""
        low, high = float(confidence.min()), float(confidence.max())
        if low >= 0 and high <= 1:
            return answers, confidence
        finite = np.isfinite(confidence)
        if not finite.all():
            self._state.unusable += int(np.count_nonzero(~finite))
            answers, confidence = answers.take(finite), confidence[finite]
        return answers, np.clip(confidence, 0, 1)

    def _fold(self, batch: Batch) -> list[Change]:
        self._state.trail.fold(batch)
        told = self.confidence.fold(batch)
        reference = self.confidence.reference
        told += self.levels.fold(batch, reference)
        if self.spec.labels:
            told += self.labels.fold(batch, reference, self._state.confidence.collecting.first)
        self._state.answers += len(batch)
        if reference is not self.frozen.confidence or self.labels.reference is not self.frozen.labels:
            self.frozen = Frozen(confidence=reference, labels=self.labels.reference)
        told.sort(key=lambda one: one[0])
        return [change for _, change in told]

    def judge(self, outcomes: Outcomes) -> list[Change]:
        """What came of earlier answers; what was told before is left out, and answers of before a reset."""
        where = f"{outcomes.topic}/{outcomes.partition}"
        offsets = outcomes.offsets or (outcomes.offset,) * len(outcomes.outcomes)
        newest = -1 if offsets[:1] == (0,) else self._state.judged.get(where, -1)  # a topic that was made anew
        told = zip(outcomes.outcomes, offsets, strict=True)
        fresh = [one for one, offset in told if offset > newest and one.ts > self._state.since]
        self._state.judged[where] = max(newest, outcomes.offset, *offsets)
        judged = self.performance.judge(fresh)
        return judged if self.inputs is None else [_with(change, self.inputs) for change in judged]

    def reset(self) -> list[Change]:
        """Begins anew with the next answer, since a person said so: its first 2,000 are the new reference. Returns
        the end of each condition that was open."""
        old = self._state
        told = [
            Change(
                kind=kind,
                subject=self.spec.identity,
                state="resolved",
                severity="info",
                ts=old.ts,
                source=old.source,
                title=RESET,
                evidence={"model": self.spec.name, "version": self.spec.version, "reset": True},
            )
            for kind, condition in self.conditions.items()
            if condition.level
        ]
        self._begin(State(ts=old.ts, source=old.source, since=old.ts, judged=old.judged), Frozen())
        return told

    def page(self) -> dict[str, object]:
        """For people, JSON: confidence over time, histograms reference and now, detectors, open conditions."""
        state = self._state
        page: dict[str, object] = {
            "model": self.spec.name,
            "version": self.spec.version,
            "preset": self.spec.preset,
            "answers": state.answers,
            "unusable": state.unusable,
            "ts": state.ts,
            "open": [
                {"kind": kind, "level": condition.level, "since": condition.since, "told": condition.told}
                | ({"by": condition.by} if condition.by else {})
                for kind, condition in self.conditions.items()
                if condition.level
            ],
        }
        if self.spec.confident:
            page["confidence"] = self.confidence.page() | state.trail.told()
            page["levels"] = self.levels.page()
        if self.spec.labels:
            page["labels"] = self.labels.page()
        if self.inputs is not None:
            page["inputs"] = self.inputs.page()
        if self.expected is not None:
            page["expected"] = self.expected.page()
        if self._state.judged:
            page["performance"] = self.performance.page()
        return page


def _with(change: Change, inputs: InputDrift) -> Change:
    if not (most := inputs.most_changed()):
        return change
    return msgspec.structs.replace(change, evidence=change.evidence | {"features": most})
