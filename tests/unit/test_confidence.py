"""Confidence: the published value, the formula by another hand, and laws that hold for any probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from scipy.stats import entropy

from models.confidence import Probabilities, confidence, interval_confidence


@st.composite
def probabilities(draw: st.DrawFn) -> Probabilities:
    """(n, C) float32 whose rows sum to 1, zeros and certainties among them."""
    shape = (draw(st.integers(1, 20)), draw(st.integers(2, 8)))
    weights = draw(nps.arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0]) | st.floats(0, 1)))
    weights[weights.sum(axis=1) < 1e-6, 0] = 1.0
    result: Probabilities = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return result


def test_the_published_value_of_85_to_15() -> None:
    assert confidence(np.array([[0.85, 0.15]], np.float32))[0] == pytest.approx(0.514, abs=5e-4)


def test_a_sure_answer_is_1_and_an_even_one_0() -> None:
    rows = np.array([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], np.float32)
    assert confidence(rows) == pytest.approx([1.0, 0.0], abs=1e-6)


@given(p=probabilities())
def test_it_equals_the_formula_as_scipy_computes_it(p: Probabilities) -> None:
    exact = p.astype(np.float64)
    first_two = np.sort(exact, axis=1)[:, :-3:-1]
    expected = 0.6 * (1 - entropy(exact, axis=1, base=p.shape[1])) + 0.4 * (first_two[:, 0] - first_two[:, 1])
    assert confidence(p) == pytest.approx(np.clip(expected, 0, 1), abs=2e-6)


@given(p=probabilities(), data=st.data())
def test_it_lies_in_0_to_1_and_the_order_of_labels_and_rows_changes_nothing(
    p: Probabilities, data: st.DataObject
) -> None:
    got = confidence(p)
    assert got.dtype == np.float32
    assert ((got >= 0) & (got <= 1)).all()
    labels = data.draw(st.permutations(range(p.shape[1])))
    rows = data.draw(st.permutations(range(len(p))))
    assert confidence(p[:, labels]) == pytest.approx(got, abs=1e-6)
    assert confidence(p[rows]) == pytest.approx(got[rows], abs=1e-6)


def test_no_rows_give_no_confidences() -> None:
    assert confidence(np.empty((0, 2), np.float32)).shape == (0,)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(odd: float) -> None:
    rows = np.array([[0.5, 0.5], [odd, 0.5], [0.5, odd]], np.float32)
    with pytest.raises(ValueError, match="row 1 "):
        confidence(rows)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_label_has_no_confidence(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="C >= 2"):
        confidence(np.ones(shape, np.float32))


def test_an_interval_is_the_surer_the_narrower() -> None:
    interval = np.array([[5, 5], [4, 6], [0, 10], [-50, 50]], np.float32)
    assert interval_confidence(interval, widest=10) == pytest.approx([1.0, 0.8, 0.0, 0.0])
    with pytest.raises(ValueError, match="row 1 "):
        interval_confidence(np.array([[0, 1], [0, np.nan]]), widest=10)
