"""nannyml's car_loan: what its documentation says has changed is what is found, and labels say what it costs.

"4 features exhibit data drift from the second half of the analysis period. They are loan_length, salary_range,
car_value, repaid_loan_on_prev_car." (docs/quick.rst of nannyml 0.13)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from models.calibrating import isotonic
from models.describing import described
from models.drift.answers import Answers
from models.drift.expected import ExpectedPerformance
from models.drift.inputs import InputDrift
from models.drift.outcomes import Outcome
from models.drift.performance import PerformanceDrift
from models.manifest import Manifest
from models.quality import Performance
from models.watched import Watched
from tests.nannyml import Rows, car_loan
from tests.unit.graphs import manifest

CHANGED: Final = {"loan_length", "salary_range", "car_value", "repaid_loan_on_prev_car"}
CHANGE: Final = 25_000
"""Row of the analysis."""


def answers(rows: Rows, p: Any, features: Any, at: int) -> Answers:
    n = len(rows)
    return Answers(
        partition=np.zeros(n, np.int32),
        offset=np.arange(at, at + n),
        ts=rows.ts,
        best=p.argmax(axis=1).astype(np.uint16),
        score=p.max(axis=1),
        confidence=None,
        features=features,
    )


def outcomes(rows: Rows, at: int) -> list[Outcome]:
    each = zip(rows.ts.tolist(), rows.truth.tolist(), rows.probabilities.tolist(), strict=True)
    return [Outcome(ts, f"observations/0/{at + i}", truth, tuple(p)) for i, (ts, truth, p) in enumerate(each)]


def test_the_published_features_are_found_and_no_others() -> None:
    reference, analysis = car_loan()
    features = described({str(name): reference.features[name].tolist() for name in reference.features})
    made = Manifest.model_validate(manifest(files={"model.onnx": "0" * 64}, features=features))
    watched = Watched(made, (), ())
    drift = InputDrift("car_loan@1", features)
    changes = []
    for rows, at in ((reference, 0), (analysis, len(reference))):
        names = [str(name) for name in rows.features]
        columns = (rows.features[name].tolist() for name in names)
        events = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        nothing = np.empty((len(rows), 0))
        changes += drift.fold(answers(rows, rows.probabilities, watched.of(events, nothing, nothing), at))
    told = [change for change in changes if not change.reminder]
    assert [(change.state, set(change.evidence["changed"])) for change in told] == [("opened", CHANGED)]  # type: ignore[call-overload]
    row = int(told[0].source.rpartition("/")[2]) - len(reference)
    assert CHANGE < row < CHANGE + 1000  # 165 a day, so a window is 500 answers
    assert set(drift.page()["changed"]) == CHANGED  # type: ignore[call-overload]


def test_labels_tell_what_it_costs_and_probabilities_expect_it() -> None:
    reference, analysis = car_loan()
    drift = PerformanceDrift("car_loan@1", 2, Performance(window_s=86_400))
    assert drift.judge(outcomes(reference, 0)[-20_000:]) == []
    told = [change for change in drift.judge(outcomes(analysis, 0)[:30_000]) if not change.reminder]
    assert [change.state for change in told] == ["opened"]
    assert CHANGE < int(told[0].source.rpartition("/")[2]) < CHANGE + 2500

    calibration = isotonic(reference.probabilities, reference.truth)
    expected = ExpectedPerformance("car_loan@1", 2)
    calibrated = [calibration.applied(rows.probabilities) for rows in (reference, analysis)]
    assert expected.fold(answers(reference, calibrated[0], None, 0)) == []
    known = float((reference.probabilities.argmax(axis=1) == reference.truth).mean())
    page: Any = expected.page()
    assert page["newest"]["accuracy"] == pytest.approx(known, abs=0.02)
    expected.fold(answers(analysis, calibrated[1], None, len(reference)))
    page = expected.page()
    after = analysis.truth[-1000:] == analysis.probabilities[-1000:].argmax(axis=1)
    assert page["newest"]["accuracy"] == pytest.approx(after.mean(), abs=0.03)
