"""Fixtures of all tests: brokers, and names that no other test uses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.kafka import Broker, given_kafka, running_embedded


def pytest_configure() -> None:
    """Tests say what they set: a developer's own HOMUNCULUS_* reach neither them nor the workers that they start."""
    for name in [name for name in os.environ if name.startswith("HOMUNCULUS_")]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test that asks for Apache Kafka, so that `-m "not kafka"` leaves them out. Where tests run in several
    processes a file stays in one, and so do all that need the ports that a worker has with nothing set."""
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def kafka() -> Broker:
    """Apache Kafka. Skips without one, or fails where REQUIRE_KAFKA is set."""
    return given_kafka()


@pytest.fixture(scope="session")
def embedded() -> Iterator[Broker]:
    """An embedded broker; it isn't the one at the default port."""
    with running_embedded() as broker:
        yield broker


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "embedded"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Apache Kafka and the embedded broker in turn: what must be true on both is tested once, here."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Broker)
    return found


@pytest.fixture
def prefix() -> str:
    """A topic prefix, or an application id, of this test alone."""
    return f"t{uuid.uuid4().hex[:10]}-"
