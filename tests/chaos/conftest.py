"""Rigs whose parts get killed: on the Kafka that the run has, on one of the test's own, and on the embedded broker."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.proxy import Proxy
from tests.rig import Rig, rig_on
from tests.worker import ROOT, free_port

LISTENERS = """\
listeners=PLAINTEXT://127.0.0.1:{0},CONTROLLER://127.0.0.1:{1},WORKERS://127.0.0.1:{2}
advertised.listeners=PLAINTEXT://127.0.0.1:{0},WORKERS://127.0.0.1:{3}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,WORKERS:PLAINTEXT
"""
"""Test and broker talk straight to each other; whoever asks at the listener for workers is sent to the proxy."""


class OwnKafka:
    """An Apache Kafka that a test may stop and start; what it holds survives that."""

    def __init__(self, folder: Path, properties: str = "", port: int | None = None) -> None:
        """properties: server properties beside the usual, one key=value a line. port: that and the next one, else
        free ones."""
        self.folder = folder
        self.properties = properties
        self.port = port or free_port(2)

    @property
    def broker(self) -> Broker:
        """Where it is."""
        return Broker("own Kafka", f"127.0.0.1:{self.port}", transactions=True)

    def start(self) -> None:
        """Returns when it answers."""
        self._script("start", str(self.port), str(self.folder))

    def stop(self) -> None:
        """Returns when it is gone."""
        self._script("stop", str(self.folder))

    def _script(self, *arguments: str) -> None:
        done = subprocess.run(
            [ROOT / "scripts" / "kafka", *arguments],
            env=os.environ | {"KAFKA_EXTRA": self.properties},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"scripts/kafka {arguments[0]}: {done.stdout}{done.stderr}"


@pytest.fixture
def rig(kafka: Broker, tmp_path: Path) -> Iterator[Rig]:
    """Apache Kafka, four partitions."""
    with rig_on(kafka, tmp_path) as rig:
        yield rig


@pytest.fixture
def own_kafka(request: pytest.FixtureRequest, kafka: Broker, tmp_path: Path) -> Iterator[OwnKafka]:
    """A second Kafka beside the run's, where the run has one; its parameter is more server properties."""
    broker = OwnKafka(tmp_path / "kafka", getattr(request, "param", ""))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def embedded_rig(embedded: Broker, tmp_path: Path) -> Iterator[Rig]:
    """The embedded broker, in a process that no worker's death ends."""
    with rig_on(embedded, tmp_path) as rig:
        yield rig


@pytest.fixture(scope="module")
def wired_kafka(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Proxy]]:
    """A Kafka with a wire for its workers."""
    first = free_port(4)
    own = OwnKafka(tmp_path_factory.mktemp("kafka"), LISTENERS.format(*range(first, first + 4)), port=first)
    own.start()
    try:
        with Proxy(first + 3, first + 2) as proxy:
            yield own.broker, proxy
    finally:
        own.stop()


@pytest.fixture
def wire(wired_kafka: tuple[Broker, Proxy]) -> Iterator[Proxy]:
    """The wire, whole again at the end."""
    _, proxy = wired_kafka
    yield proxy
    proxy.slow()
    proxy.release()
