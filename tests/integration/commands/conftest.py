"""An application of its own for each test, on the broker that the test has."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.settings import Settings
from core.topics import ALL
from engine.admin import ensure_topics
from tests.kafka import Broker


@pytest.fixture
async def settings(broker: Broker, prefix: str, tmp_path: Path) -> Settings:
    """An application of this test alone, whose topics exist."""
    ours = Settings(
        broker=broker.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3, data_dir=tmp_path / "data",
        model_store=str(tmp_path / "store"),
    )  # fmt: skip
    await ensure_topics(broker.bootstrap, ALL, ours)
    return ours
