"""The tests' statistics and chances are scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from models.drift import chi_square, dependence
from models.drift.kolmogorov import chance, critical, distance


@pytest.mark.parametrize(("n", "m"), [(2000, 200), (500, 200), (1234, 200), (20, 7), (7, 20)])
def test_kolmogorov_smirnov_is_scipys_exact_test(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    for digits in (1, 2, 9):  # with many ties, and none
        reference = np.sort(rng.beta(8, 2, n).round(digits))
        window = rng.beta(8, rng.uniform(1.5, 3), m).round(digits)
        theirs = stats.ks_2samp(reference, window, method="exact")
        assert distance(reference, window) == pytest.approx(theirs.statistic, abs=1e-12)
        assert chance(theirs.statistic, n, m) == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-9)


def test_the_critical_value_of_200_against_2000() -> None:
    assert critical(0.01, 2000, 200) == pytest.approx(0.12)
    assert chance(0.12, 2000, 200) < 0.01 <= chance(0.1195, 2000, 200)


def test_distances_at_both_ends() -> None:
    assert distance(np.array([0.5, 0.5]), np.array([0.5])) == 0.0
    assert distance(np.array([0.1, 0.2]), np.array([0.9])) == 1.0
    assert chance(0.0, 20, 10) == 1.0
    assert chance(1.0, 20, 10) == pytest.approx(stats.ks_2samp(np.zeros(20), np.ones(10), method="exact").pvalue)


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 300])
def test_chi_squares_chance_is_scipys(freedom: int) -> None:
    for x in (0.0, 1e-3, 0.5, freedom / 2, freedom, freedom + 1.0, 2.0 * freedom, 5.0 * freedom + 20, 3000.0):
        assert chi_square.chance(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-9, abs=1e-14)


def test_chi_square_of_two_samples_is_scipys_contingency() -> None:
    then, now = np.array([900, 700, 400]), np.array([420, 390, 190])
    theirs = stats.chi2_contingency(np.stack([then, now]))
    assert list(chi_square.statistic(then, now)) == pytest.approx([theirs.statistic, theirs.dof])
    assert chi_square.statistic(np.array([2000, 0]), np.array([1000, 9])) == (0.0, 0)


def test_dependence_is_how_much_less_a_mean_is_known() -> None:
    rng = np.random.default_rng(4)
    assert dependence.of_values(rng.beta(8, 2, 2000)) == 1.0
    assert dependence.of_values(np.full(2000, 0.9)) == 1.0
    noise, values = rng.standard_normal(20_000), np.zeros(20_000)
    for k in range(1, len(values)):
        values[k] = 0.9 * values[k - 1] + noise[k]
    assert dependence.of_values(values) == pytest.approx(19, rel=0.2)
    labels = np.repeat(rng.integers(0, 2, 400), 5)
    assert dependence.of_labels(labels, np.bincount(labels)) == pytest.approx(5, rel=0.25)
    assert dependence.of_labels(np.zeros(50, np.uint16), np.array([50, 0])) == 1.0
