"""Workers for the tests of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.web.worker import Make, Start, Worker, making


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes workers that are not started yet, and ends them."""
    async with making(tmp_path) as make:
        yield make


@pytest.fixture
def start(make: Make) -> Start:
    """Makes and starts workers."""

    async def started(**settings: Any) -> Worker:
        return await make(**settings).start()

    return started
