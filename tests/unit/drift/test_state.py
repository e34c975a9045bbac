"""What is kept of a version stays below 100 KB, whatever it is and however fast it answers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pydantic import TypeAdapter

from models.describing import described
from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.ordering import Ordering
from models.drift.outcomes import Outcome, Outcomes
from models.drift.singles import Singles
from models.drift.spec import Spec
from models.reference import FeatureReference
from tables.drift import Reference, Watch, packed, page, references, watches

PARTITIONS, FEATURES, SLICE = 4, 30, 1000
T0 = 1_764_374_400_000
RNG = np.random.default_rng(1)


def spec(labels: int) -> Spec:
    columns = described({f"n{j}": RNG.normal(size=2000).tolist() for j in range(FEATURES)})
    return Spec(
        name="churn",
        version="3",
        labels=tuple(f"label {k}" for k in range(labels)),
        calibrated=True,
        features=TypeAdapter(dict[str, FeatureReference]).dump_json(columns),
        reference_confidence=tuple(np.sort(RNG.beta(8, 2, 2000)).tolist()),
    )


def slices(labels: int) -> Iterator[tuple[Answers, Outcomes]]:
    """10,000 answers a second over four partitions of which each waits for the others, and labels of many hours."""
    for number in range(25):
        at = SLICE * number
        sure = RNG.beta(8, 2, SLICE).astype(np.float32)
        answers = Answers(
            np.full(SLICE, number % PARTITIONS, np.int32),
            np.arange(at, at + SLICE) + 10**8,
            T0 + 100 * number + np.arange(SLICE) // 10,
            RNG.integers(0, labels, SLICE).astype(np.uint16),
            sure,
            sure,
            RNG.normal(size=(SLICE, FEATURES)).astype(np.float32),
        )
        scores = RNG.dirichlet(np.ones(labels), 100).tolist()
        offsets = tuple(range(100 * number, 100 * number + 100))
        outcomes = tuple(
            Outcome(T0 + 300_000 * k, f"observations/0/{k}", int(RNG.integers(0, labels)), tuple(one))
            for k, one in zip(offsets, scores, strict=True)
        )
        yield answers, Outcomes(0, offsets[-1], outcomes, offsets)


@pytest.mark.parametrize("labels", [2, 10, 1000])
def test_state_and_reference_of_a_version_are_below_100_kb(labels: int) -> None:
    monitor, ordering = Monitor(spec(labels)), Ordering(PARTITIONS, FEATURES)
    largest, watch, reference = 0, b"", b""
    for number, (answers, outcomes) in enumerate(slices(labels)):
        if (turn := ordering.merge(answers, T0 + 10 * number)) is not None:
            monitor.fold(turn)
        monitor.judge(outcomes)
        watch = packed(Watch(ordering.state, monitor.state, Singles()))
        reference = packed(Reference(monitor.spec, monitor.frozen))
        largest = max(largest, len(watch) + len(reference))
    assert monitor.frozen.confidence is not None
    assert ordering.waiting > 200
    assert largest < 100_000
    assert page("churn@3", references.encode(reference), watches.encode(watch))["answers"] == monitor.state.answers
