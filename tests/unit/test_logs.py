"""What a log line says of the work that it comes out of, for people and as JSON."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog

from core.erasure import pseudonym
from core.settings import Settings
from core.topics import Direction, TopicSpec
from engine import logs
from engine.agent import Agent, Stream
from engine.outage import Outage
from engine.testing import in_memory

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "request-id": "r-17", "user-id": "u\n4"}
log = logging.getLogger("agents.test")


class Order(msgspec.Struct):
    id: str
    session: str


ORDERS = TopicSpec("orders", "session", Order, Direction.IN)


async def tell(stream: Stream[Order]) -> None:
    async for batch in stream:
        log.info("a batch of %d", len(batch))
        for order in batch:
            if order.id == "bad":
                raise ValueError("no order")
            structlog.get_logger("agents.test").info("taken", order=order.id)
    log.info("never said")


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What is logged, in the format of the parameter."""
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    config = logs.config(Settings(log_format=request.param), Outage())
    config["handlers"]["stderr"]["stream"] = out
    logging.config.dictConfig(config)
    yield out
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def as_json(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.mark.parametrize("lines", ["json"], indirect=True)
async def test_a_line_about_a_record_says_which_and_whose(lines: io.StringIO) -> None:
    async with in_memory([Agent(ORDERS, tell)], []) as trial:
        trial.publish(ORDERS, [Order("a", "ann")], headers=HEADERS)
        trial.publish(ORDERS, [Order("bad", "bob")])
        await trial.read(ORDERS, 1)
        await trial.read(ORDERS, 1)
        await trial.read(ORDERS, 1)
    found = {line["message"]: line for line in as_json(lines)}
    about = {
        "source": "orders/0/0",
        "session": pseudonym("ann"),
        "trace_id": TRACE,
        "request_id": "r-17",
        "user_id": "u\n4",
    }
    assert found["taken"].items() >= (about | {"order": "a", "level": "info", "logger": "agents.test"}).items()
    failed = found["orders/0/1 failed and goes to dead-letters"]
    assert (failed["source"], failed["session"]) == ("orders/0/1", pseudonym("bob"))
    assert "ValueError: no order" in failed["exception"]
    assert "trace_id" not in failed
    log.info("afterwards")
    assert as_json(lines)[-1].keys() == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("lines", ["json"], indirect=True)
async def test_a_line_about_a_batch_says_what_is_in_it(lines: io.StringIO) -> None:
    async with in_memory([Agent(ORDERS, tell)], []) as trial:
        trial.publish(ORDERS, [Order("a", "ann"), Order("b", "bob")])
        await trial.read(ORDERS, 2)
    found = {line["message"]: line for line in as_json(lines)}
    assert found["a batch of 2"]["source"] == found["taken"]["source"] == "orders/0/0-1"
    assert "session" not in found["taken"]


@pytest.mark.parametrize("lines", ["console"], indirect=True)
def test_people_get_the_same_in_one_line(lines: io.StringIO) -> None:
    about = {"source": "orders/0/1", "user_id": "u\n4 level=CRITICAL"}
    log.warning("refused %s", "politely", extra=about)
    [line] = lines.getvalue().splitlines()
    assert line[8:] == r" WARNING  refused politely  source=orders/0/1 user_id='u\n4 level=CRITICAL'"


@pytest.mark.parametrize("lines", ["console", "json"], indirect=True)
def test_a_loggers_own_fields_take_nothing_away(lines: io.StringIO) -> None:
    structlog.get_logger("agents.test").error("lost", level="none", time=0, amount=12)
    assert "lost" in lines.getvalue()
    assert "amount" in lines.getvalue()


@pytest.mark.parametrize("lines", ["console"], indirect=True)
def test_an_exception_follows_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, *rest = lines.getvalue().splitlines()
    assert first.endswith("ERROR    failed")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "ValueError: why"
