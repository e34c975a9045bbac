"""Workers for the tests of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.table import Table
from tests.unit.web.worker import Make, Notes, Start, Worker


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes workers that are not started yet, and ends them."""
    workers: list[Worker] = []
    Notes()

    def build(**settings: Any) -> Worker:
        workers.append(Worker(tmp_path / str(len(workers)), **settings))
        return workers[-1]

    yield build
    for worker in workers:
        await worker.close()
    del Table.declared["notes"]


@pytest.fixture
def start(make: Make) -> Start:
    """Makes and starts workers."""

    async def started(**settings: Any) -> Worker:
        return await make(**settings).start()

    return started
