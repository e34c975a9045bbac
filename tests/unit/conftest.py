"""What every unit test begins with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.batch import _current


@pytest.fixture(autouse=True)
def nobody_at_work() -> Iterator[None]:
    """What another test has left at work isn't what these lines are about."""
    before = _current.set(None)  # type: ignore[arg-type]
    yield
    _current.reset(before)
