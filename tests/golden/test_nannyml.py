"""Known changes in nannyml's data are found at known rows, by confidences alone; nothing is said before."""

from __future__ import annotations

import numpy as np
import pytest

from models.confidence import confidence
from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.spec import Spec
from tests import nannyml
from tests.nannyml import Rows


def answers(reference: Rows, analysis: Rows) -> Answers:
    """What an identity model on the probabilities answers to both, one after the other."""
    p = np.concatenate((reference.probabilities, analysis.probabilities))
    best = p.argmax(axis=1)
    return Answers(
        np.zeros(len(p), np.int32),
        np.arange(len(p)),
        np.concatenate((reference.ts, analysis.ts)),
        best.astype(np.uint16),
        p.max(axis=1),
        confidence(p),
        None,
    )


@pytest.mark.parametrize(
    ("rows", "warning", "drift"),
    [(nannyml.car_loan, 25_167, 25_599), (nannyml.mc, 30_111, 30_599)],
    ids=["car_loan", "mc"],
)
@pytest.mark.parametrize("size", [100_000, 331])
def test_the_change_is_found(rows: object, warning: int, drift: int, size: int) -> None:
    assert callable(rows)
    reference, analysis = rows()
    stream = answers(reference, analysis)
    monitor = Monitor(Spec(name="golden", version="1", labels=reference.labels))
    first: dict[str, int] = {}
    for start in range(0, len(reference) + 31_000, size):
        for change in monitor.fold(stream.take(slice(start, start + size))):
            row = int(change.source.rpartition("/")[2]) - len(reference)
            first.setdefault(change.kind, row)
    assert {kind: first[kind] for kind in ("drift_warning", "drift_suspected", "drift")} == {
        "drift_warning": warning,
        "drift_suspected": drift,
        "drift": drift,
    }
    assert min(first.values()) == warning
