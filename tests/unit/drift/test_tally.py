"""Figures out of sums: scikit-learn's, and gone without a trace once what led to them is taken back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, mean_absolute_error, roc_auc_score, root_mean_squared_error

from models.drift.outcomes import Outcome
from models.drift.tally import Ranks, Sums, Tally, auc_deviation

Rows = np.ndarray[Any, np.dtype[np.float32]]


def drawn(seed: int, n: int, labels: int, steep: float = 1.0) -> tuple[Rows, Any]:
    """(n, labels) float32 probabilities and what was true, by them."""
    random = np.random.default_rng(seed)
    logits = random.normal(scale=steep, size=(n, labels))
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    truth = (p.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return p.astype(np.float32), truth


def outcomes(p: Rows, truth: Any, weight: int = 1) -> list[Outcome]:
    rows = zip(p.tolist(), truth.tolist(), strict=True)
    return [Outcome(i, f"observations/0/{i}", label, tuple(row), None, weight) for i, (row, label) in enumerate(rows)]


def summed_up(tally: Tally, *given: list[Outcome]) -> Sums:
    sums = tally.empty()
    for outcome in (one for each in given for one in each):
        assert tally.usable(outcome)
        tally.add(sums, outcome)
    return sums


@pytest.mark.parametrize("labels", [2, 3, 10])
@pytest.mark.parametrize("steep", [0.2, 1.0, 4.0])
def test_figures_of_classifiers_are_scikit_learns(labels: int, steep: float) -> None:
    p, truth = drawn(1, 3000, labels, steep)
    tally = Tally(labels)
    sums = summed_up(tally, outcomes(p, truth))
    quality = tally.quality(sums)
    assert quality is not None
    assert quality.rows == 3000
    assert quality.accuracy == pytest.approx((p.argmax(axis=1) == truth).mean())
    assert quality.log_loss == pytest.approx(log_loss(truth, p, labels=range(labels)), abs=1e-5)
    if labels == 2:
        expected = roc_auc_score(truth, p[:, 1])
    else:
        rows = p.astype(np.float64)
        expected = roc_auc_score(truth, rows / rows.sum(axis=1, keepdims=True), multi_class="ovr", average="macro")
    bound = np.mean([rank.error for rank in tally.ranks(sums)])
    assert abs(quality.auc - expected) <= bound
    assert steep < 1 or abs(quality.auc - expected) < 0.002


def test_the_calibration_error_is_that_of_15_bins() -> None:
    p, truth = drawn(2, 5000, 2, 2.0)
    best, right = p.max(axis=1).astype(np.float64), p.argmax(axis=1) == truth
    bins = np.minimum((best * 15).astype(int), 14)
    expected = sum(abs(best[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in set(bins))
    tally = Tally(2)
    sums = summed_up(tally, outcomes(p, truth))
    quality = tally.quality(sums)
    assert quality is not None
    assert quality.ece == pytest.approx(expected, abs=1e-5)
    gap, deviation = tally.gap(sums)
    assert gap == pytest.approx(best.mean() - right.mean(), abs=1e-5)
    assert deviation == pytest.approx((best - right).std() / math.sqrt(5000), rel=1e-3)
    assert sum(one["outcomes"] for one in tally.reliability(sums)) == 5000


def test_figures_of_regressors_are_scikit_learns() -> None:
    random = np.random.default_rng(3)
    truth = random.normal(size=500)
    value = truth + random.normal(0.3, 0.5, 500)
    tally = Tally(0)
    given = [Outcome(0, "s", 0, (v,), t) for v, t in zip(value.tolist(), truth.tolist(), strict=True)]
    quality = tally.quality(summed_up(tally, given))
    assert quality is not None
    assert quality.mae == pytest.approx(mean_absolute_error(truth, value))
    assert quality.rmse == pytest.approx(root_mean_squared_error(truth, value))
    assert quality.bias == pytest.approx((value - truth).mean())


@settings(max_examples=40)
@given(data=st.data(), labels=st.sampled_from([2, 3, 12]))
def test_a_correction_takes_back_exactly_what_was_added(data: st.DataObject, labels: int) -> None:
    p, truth = drawn(data.draw(st.integers(0, 50)), 40, labels, 3.0)
    believed = np.array(data.draw(st.lists(st.integers(0, labels - 1), min_size=40, max_size=40)))
    tally = Tally(labels)
    steps = [*outcomes(p, believed), *outcomes(p, believed, -1), *outcomes(p, truth)]
    order = data.draw(st.permutations(range(120)))
    assert summed_up(tally, [steps[i] for i in order]) == summed_up(tally, outcomes(p, truth))


def test_of_a_regressor_nothing_is_left_of_what_was_taken_back() -> None:
    tally = Tally(0)
    steps = [(0.1, 0.3, 1), (7.0, 0.1, 1), (0.1, 0.3, -1), (7.0, 0.1, -1)]
    sums = summed_up(tally, [Outcome(0, "s", 0, (v,), t, weight) for v, t, weight in steps])
    assert sums == [0, 0.0, 0.0, 0.0]
    assert tally.quality(sums) is None


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(0, "s", 0, (math.nan, 0.5)),
        Outcome(0, "s", 0, (math.inf, 0.5)),
        Outcome(0, "s", 2, (0.5, 0.5)),
        Outcome(0, "s", -1, (0.5, 0.5)),
        Outcome(0, "s", 0, (0.2, 0.3, 0.5)),
        Outcome(0, "s", 0, ()),
        Outcome(0, "s", 0, (0.5, 0.5), None, 2),
    ],
)
def test_what_says_nothing_is_not_usable(outcome: Outcome) -> None:
    assert not Tally(2).usable(outcome)


@pytest.mark.parametrize("truth", [None, math.nan, math.inf, 1e200])
def test_a_regressor_needs_a_truth(truth: float | None) -> None:
    assert not Tally(0).usable(Outcome(0, "s", 0, (1.0,), truth))


def test_one_kind_of_label_has_no_auc() -> None:
    p, _ = drawn(1, 10, 2)
    quality = Tally(2).quality(summed_up(Tally(2), outcomes(p, np.zeros(10, int))))
    assert quality is not None
    assert quality.auc is None


def test_a_correction_of_what_was_never_counted_does_no_harm() -> None:
    tally = Tally(2)
    p, truth = drawn(1, 3, 2)
    sums = summed_up(tally, outcomes(p, truth, -1), outcomes(*drawn(2, 4, 2)))
    quality = tally.quality(sums)
    assert quality is not None
    assert quality.rows == 1
    tally.ranks(sums)
    assert tally.quality(summed_up(tally, outcomes(p, truth, -1))) is None


def test_the_deviation_of_an_auc_is_what_repeating_it_shows() -> None:
    random = np.random.default_rng(5)
    found, said = [], []
    for _ in range(400):
        counts = np.stack(
            [
                np.bincount(np.clip(random.normal(m, 12, n).astype(int), 0, 127), minlength=128)
                for m, n in ((50, 300), (65, 100))
            ]
        ).astype(float)
        ranks = Ranks(counts)
        found.append(ranks.auc)
        said.append(ranks.deviation)
    assert np.mean(said) == pytest.approx(np.std(found), rel=0.1)
    assert auc_deviation(float(np.mean(found)), 100, 300) == pytest.approx(np.std(found), rel=0.15)
