"""Fixtures of all tests: brokers, and names that no other test uses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.kafka import Broker, given_kafka, running_embedded

DEFAULT_PORTS: Final = {"test_demo", "test_embedded_worker", "test_event_time_page", "test_trials"}


def pytest_configure() -> None:
    """Tests say what they set: a developer's own HOMUNCULUS_* reach neither them nor the workers that they start."""
    for name in [name for name in os.environ if name.startswith("HOMUNCULUS_")]:
        del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of hundreds of workers compiles the application anew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test that asks for Apache Kafka, so that `-m "not kafka"` leaves them out."""
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


class ByFile(LoadScopeScheduling):
    """A file's tests run in one process; so do those of all files that need the ports of a worker with nothing set."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the default ports" if Path(file).stem in DEFAULT_PORTS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """How tests are dealt to the processes of `pytest -n 2`."""
    return ByFile(config, log)


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
