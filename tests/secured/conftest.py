"""A broker that knows everybody, for all tests here: starting one costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka import Broker
from tests.secured.certificates import Certificates
from tests.secured.kafka import SecuredKafka


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority that the broker and its clients trust."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secured(
    kafka: Broker, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    """Apache Kafka with TLS, SASL and ACLs, where the run has Apache Kafka at all."""
    broker = SecuredKafka(tmp_path_factory.mktemp("secured"), certificates)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
