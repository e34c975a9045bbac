"""A rig of its own for each test, on the Kafka that the run has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.rig import Rig, rig_on


@pytest.fixture
def rig(kafka: Broker, tmp_path: Path) -> Iterator[Rig]:
    """Apache Kafka, four partitions."""
    with rig_on(kafka, tmp_path) as rig:
        yield rig
