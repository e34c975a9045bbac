"""The clock of a broker beside ours: asked for without a word in any topic of the application."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from cli.checks import APART_S, FaultError, agree
from core.settings import Settings
from engine import broker_clock
from engine.broker_clock import Difference, difference
from engine.connection import Connection, connect
from tests.kafka import Broker


@pytest.fixture
async def connection(kafka: Broker, prefix: str) -> Connection:
    settings = Settings(broker=kafka.url, topic_prefix=prefix, app_id=f"{prefix}app")
    return await connect(settings, kafka.url)


async def test_a_broker_on_this_machine_has_its_time(connection: Connection, kafka: Broker) -> None:
    found = await difference(connection)
    assert found.broker == kafka.bootstrap
    assert found.least < 0.001
    assert found.most > -0.001
    assert found.most - found.least < 5
    assert "ms from that of the broker" in agree(found)


@pytest.mark.parametrize(("ours", "told"), [(7, "7.* s ahead of"), (-7, "7.* s behind")])
async def test_a_clock_of_ours_that_is_off_is_seen(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, ours: float, told: str
) -> None:
    monkeypatch.setattr(broker_clock, "time", SimpleNamespace(time=lambda: time.time() + ours))
    found = await difference(connection)
    assert found.least - 0.001 <= -ours <= found.most + 0.001
    with pytest.raises(FaultError, match=told):
        agree(found)


async def test_it_may_be_asked_again_and_again(connection: Connection) -> None:
    for _ in range(3):
        await difference(connection)


def test_clocks_are_apart_only_if_they_certainly_are() -> None:
    for least, most in ((-0.2, 0.3), (0.9, 5.0), (-5.0, -0.9), (-9.0, 9.0)):
        agree(Difference("b:1", least, most))
    with pytest.raises(FaultError, match=r"1.5 s behind that of the broker at b:1.*watermark"):
        agree(Difference("b:1", APART_S + 0.4, APART_S + 0.6))
    with pytest.raises(FaultError, match=r"1.5 s ahead of that of the broker at b:1.*late"):
        agree(Difference("b:1", -APART_S - 0.6, -APART_S - 0.4))
