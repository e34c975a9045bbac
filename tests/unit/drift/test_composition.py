"""All detectors of a version together: what features, labels and probabilities say reaches a person by one way."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.drift.answers import Answers
from models.drift.command import Command, obey
from models.drift.condition import Change
from models.drift.monitor import Frozen, Monitor, State
from models.drift.outcomes import Outcome, Outcomes
from models.drift.spec import Spec
from models.manifest import Manifest

N = 6000
RNG = np.random.default_rng(4)
MANIFEST = Manifest.model_validate(
    {
        "name": "churn",
        "version": "2",
        "inputs": {"rows": {"fields": ["age", "plan"]}},
        "outputs": {"probabilities": "p"},
        "labels": ["no", "yes"],
        "files": {"model.onnx": "0" * 64},
        "calibration": {"method": "temperature", "temperature": 1.0},
        "features": {
            "age": {"type": "number", "rows": 1000, "values": [float(v) for v in range(1, 101)],
                    "up_to": [v / 100 for v in range(1, 101)]},
            "plan": {"type": "category", "rows": 1000, "shares": {"a": 0.5, "b": 0.5}},
        },
    }
)  # fmt: skip
SPEC = Spec.of(MANIFEST)


def stream(shifted: int) -> Answers:
    """N answers; ages are higher from `shifted` on."""
    age = RNG.uniform(0, 100, N)
    age[shifted:] = 60 + age[shifted:] * 0.4
    p = RNG.beta(9, 2, N).astype(np.float32)
    features = np.stack([age, RNG.integers(0, 2, N)], axis=1).astype(np.float32)
    at = np.arange(N, dtype=np.int64)
    zeros = np.zeros(N)
    return Answers(zeros.astype(np.int32), at, 1000 * at, zeros.astype(np.uint16), p, p, features)


STREAM = stream(3000)


def restored(monitor: Monitor) -> Monitor:
    """As another worker finds it."""
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(monitor.state), type=State)
    frozen = msgspec.msgpack.decode(msgspec.msgpack.encode(monitor.frozen), type=Frozen)
    spec = msgspec.msgpack.decode(msgspec.msgpack.encode(monitor.spec), type=Spec)
    return Monitor(spec, state, frozen)


def judged(first: int, good: int) -> Outcomes:
    """100 outcomes, so many of them right, of feedback from an offset on."""
    outcomes = tuple(
        Outcome(3_600_000 * first + k, f"observations/0/{first + k}", int(k >= good), (0.9, 0.1)) for k in range(100)
    )
    return Outcomes(0, first + 99, outcomes, tuple(range(first, first + 100)))


def test_a_feature_that_changed_is_told_of() -> None:
    told = Monitor(SPEC).fold(STREAM)
    drifted = [change for change in told if change.kind == "input_drift"]
    assert [change.state for change in drifted] == ["opened"]
    assert "age" in drifted[0].title
    assert "plan" not in drifted[0].title


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 2500), min_size=3, max_size=8), st.booleans())
def test_cuts_and_restarts_change_nothing(sizes: list[int], restarts: bool) -> None:
    whole = Monitor(SPEC)
    expected = whole.fold(STREAM)
    monitor, told, at = Monitor(SPEC), list[Change](), 0
    for size in [*sizes, N]:
        told += monitor.fold(STREAM.take(slice(at, at + size)))
        at += size
        if restarts:
            monitor = restored(monitor)
    assert told == expected
    assert msgspec.msgpack.encode(monitor.state) == msgspec.msgpack.encode(whole.state)


def test_labels_that_came_before_count_once() -> None:
    once, again = Monitor(SPEC), Monitor(SPEC)
    for first in (0, 100, 200):
        once.judge(judged(first, 90))
        again.judge(judged(first, 90))
        again.judge(judged(first, 90)) if first else None
        again = restored(again)
    assert once.page()["performance"] == again.page()["performance"]


def test_a_model_that_became_worse_is_told_of_once_labels_come() -> None:
    monitor, told = Monitor(SPEC), list[Change]()
    for n in range(40):
        told += monitor.judge(judged(100 * n, 90))
    assert told == []
    for n in range(40, 90):
        told += monitor.judge(judged(100 * n, 60))
    assert {change.kind for change in told} == {"performance_drift"}


def test_after_a_reset_labels_of_answers_before_it_are_not_judged() -> None:
    """Some of them came before, and are gone: those that come late would be a sample of one kind."""
    monitor, told = Monitor(SPEC), list[Change]()
    for n in range(40):
        told += monitor.judge(judged(100 * n, 90))
    now = 3_600_000 * 4000
    monitor.fold(dataclasses.replace(STREAM, ts=now - 1000 * np.arange(N, dtype=np.int64)[::-1]))
    monitor.reset()
    monitor = restored(monitor)
    for n in range(40, 90):
        late = judged(100 * n, 0)
        told += monitor.judge(msgspec.structs.replace(late, outcomes=tuple(before(one, now) for one in late.outcomes)))
    assert told == []
    for n in range(90, 140):
        told += monitor.judge(judged(100 * n, 90))
    for n in range(140, 190):
        told += monitor.judge(judged(100 * n, 60))
    assert {change.kind for change in told} == {"performance_drift"}, "those after it are"


def before(outcome: Outcome, ts: int) -> Outcome:
    return msgspec.structs.replace(outcome, ts=ts)


@pytest.mark.parametrize("does", ["acknowledge", "resolve", "reset"])
def test_a_person_is_obeyed_about_all_of_them(does: str) -> None:
    monitor = Monitor(SPEC)
    monitor.fold(STREAM)
    command = Command(does, "input_drift", "churn@2", "anna", "control/0/7", 9)  # type: ignore[arg-type]
    ended = obey(monitor, command)
    open_ones = {one["kind"]: one.get("by") for one in monitor.page()["open"]}  # type: ignore[attr-defined]
    if does == "acknowledge":
        assert (ended, open_ones["input_drift"]) == ([], "anna")
    else:
        assert [(change.kind, change.state, change.source) for change in ended if change.kind == "input_drift"] == [
            ("input_drift", "resolved", "control/0/7")
        ]
        assert "input_drift" not in open_ones
    assert restored(monitor).page() == monitor.page()
