"""Tail probabilities against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, chi2, kstwo

from models.drift.significance import at_least, chi_square, counts_up_to, ks, ks_critical, share_changed


@settings(max_examples=40, deadline=None)
@given(statistic=st.floats(0.01, 1200), freedom=st.integers(1, 300))
def test_chi_square_is_scipys(statistic: float, freedom: int) -> None:
    assert chi_square(statistic, freedom) == pytest.approx(chi2.sf(statistic, freedom), rel=1e-6, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 1000), data=st.data())
def test_a_share_is_the_beta_binomials_tail(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    rows = data.draw(st.integers(1, 100_000))
    seen = data.draw(st.integers(0, rows))
    expected = betabinom.sf(k - 1, n, seen + 1, rows - seen + 1)
    assert at_least(k, n, seen, rows) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert 0 <= share_changed(k, n, seen, rows) <= 1


@settings(max_examples=40, deadline=None)
@given(distance=st.floats(0.001, 1), n=st.integers(1, 5000))
def test_the_bound_of_ks_is_never_below_the_exact_one(distance: float, n: int) -> None:
    assert ks(distance, n) >= min(1.0, kstwo.sf(distance, n)) - 1e-12


def test_the_critical_distance_is_the_bounds() -> None:
    assert ks(ks_critical(1e-4, 700), 700) == pytest.approx(1e-4)
    assert ks_critical(0.01, 1000) == pytest.approx(kstwo.isf(0.01, 1000), rel=0.01)


def test_what_counts_is_benjamini_and_hochbergs() -> None:
    """The fifteen p-values of their paper's example: at .05 four of them count."""
    first = (0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344)
    p = np.array([*first, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0])
    assert (p <= counts_up_to(p, 0.05)).sum() == 4
    assert (p <= counts_up_to(p, 1e-3)).sum() == 0
    assert counts_up_to(p, 1e-3) == pytest.approx(1e-3 / 15)
    assert counts_up_to(np.array([0.0, 1.0]), 1e-3) == 5e-4
