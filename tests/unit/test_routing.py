"""A session's side of a canary: the same everywhere and always."""

from __future__ import annotations

import numpy as np
import pytest

from models.routing import sides

NAMES = {
    "numbered": [b"s%d" % i for i in range(10_000)],
    "padded": [b"customer-%012d" % (17 * i) for i in range(10_000)],
    "hex": [(b"%032x" % (7919 * i)) for i in range(10_000)],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("model", ["churn", "fraud"])
def test_a_tenth_of_the_sessions_is_a_tenth(model: str, names: list[bytes]) -> None:
    found = sides(model, names)
    assert 0.09 <= np.mean(found < 0.1) <= 0.11
    counts, _ = np.histogram(found, 20, (0, 1))
    assert np.sum((counts - 500) ** 2 / 500) < 50  # chi-squared with 19 degrees of freedom: p > .0001


def test_two_models_have_nothing_to_do_with_each_other() -> None:
    one, other = sides("churn", NAMES["numbered"]), sides("fraud", NAMES["numbered"])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_a_side_never_moves() -> None:
    """A release that computed another one would move sessions of a canary under way."""
    assert sides("churn", [b"ann", b"bob", "zoë".encode()]).round(6).tolist() == [0.943004, 0.881683, 0.605754]
    assert sides("churn", []).tolist() == []
