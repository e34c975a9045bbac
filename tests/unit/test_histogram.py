"""What buckets tell of the values that went into them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.histogram import Histogram

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


def test_a_value_on_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(0.02)
    histogram.observe(0.021, 3)
    histogram.observe(7.0)
    assert histogram.counts == [0, 1, 3, 0, 0, 0, 1]
    assert histogram.count == 5
    assert histogram.total == pytest.approx(0.02 + 3 * 0.021 + 7.0)


def test_a_bucket_keeps_its_newest_trace() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(0.03, 5, "a" * 32)
    histogram.observe(0.04, 5, "b" * 32)
    histogram.observe(0.045)
    kept = [exemplar and (exemplar.trace, exemplar.value) for exemplar in histogram.exemplars]
    assert kept == [None, None, ("b" * 32, 0.04), None, None, None, None]


@given(st.lists(st.floats(0.0, 0.99), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.75, 1.0]))
@example([0.5, 0.5, 0.5], 1.0)  # .4 * 3 / 3 is more than .4
def test_a_quantile_is_off_by_its_bucket_at_most(values: list[float], q: float) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    told = histogram.quantile(q)
    assert told is not None
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    high = min(bound for bound in BOUNDS if bound >= exact)
    low = max((bound for bound in BOUNDS if bound < exact), default=0.0)
    assert low <= told <= high


def test_a_quantile_of_what_has_come_since() -> None:
    histogram = Histogram(BOUNDS)
    assert histogram.quantile(0.5) is None
    histogram.observe(0.9, 1000)
    before = list(histogram.counts)
    assert histogram.quantile(0.5, before) is None
    histogram.observe(0.015, 10)
    assert histogram.quantile(0.99, before) == pytest.approx(0.0199)
    histogram.observe(100.0, 10**6)
    assert histogram.quantile(0.99, before) == 1.0  # the last bound: no more is known
