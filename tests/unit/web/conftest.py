"""Workers for the tests of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.table import Table
from tests.unit.web.worker import NAMES, TABLES, Make, Start, Worker


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes workers that are not started yet, and ends them."""
    workers: list[Worker] = []
    for table in TABLES:
        table()

    def build(**settings: Any) -> Worker:
        workers.append(Worker(tmp_path / str(len(workers)), **settings))
        return workers[-1]

    yield build
    for worker in workers:
        await worker.close()
    for name in NAMES:
        del Table.declared[name]


@pytest.fixture
def start(make: Make) -> Start:
    """Makes and starts workers."""

    async def started(**settings: Any) -> Worker:
        return await make(**settings).start()

    return started
