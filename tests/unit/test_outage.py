"""A broker that goes away: what people read of it, in the place of hundreds of lines of its clients."""

from __future__ import annotations

import inspect
import io
import json
import logging
import logging.config
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

import aiokafka.client
import aiokafka.consumer.fetcher
import aiokafka.consumer.group_coordinator
import aiokafka.producer.sender
import pytest
import structlog

from core.settings import Settings
from engine import logs, outage, producer, task
from engine.outage import CLIENT, EVERY_S, LOOK_S, NOT_TAKEN, REOPENING, Outage

CLIENTS: Final = logging.getLogger("aiokafka.client")
REFUSED: Final = "[Errno 111] Connect call failed ('127.0.0.1', 9092)"
MODULES: Final = (
    *(aiokafka.client, aiokafka.consumer.fetcher, aiokafka.consumer.group_coordinator, aiokafka.producer.sender),
)


class Told:
    """The log of a worker whose clock the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.answers = False
        self.outage = Outage()
        self.out = io.StringIO()
        monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(outage, "answering", self._answering)
        config = logs.config(Settings(log_format="json"), self.outage)
        config["handlers"]["stderr"]["stream"] = self.out
        logging.config.dictConfig(config)

    async def _answering(self, connection: Any) -> bool:
        return self.answers

    async def look(self) -> None:
        """As the worker does every two seconds."""
        await self.outage.look(cast(Any, None))

    @property
    def lines(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.out.getvalue().splitlines()]

    def away(self, seconds: float) -> None:
        """What clients and partitions say in that time, ten times a second."""
        for _ in range(round(10 * seconds)):
            CLIENTS.error("Unable connect to node with id %s: %s", 1, REFUSED)
            CLIENTS.error("Unable to update metadata from %s", [1])
            logging.getLogger("aiokafka.consumer.fetcher").error("Failed fetch messages from %s: %s", 1, REFUSED)
            logging.getLogger("aiokafka.consumer.group_coordinator").error(
                "Group Coordinator Request failed: %s", "NodeNotReadyError"
            )
            self.reopen("NodeNotReadyError()")
            self.now += 0.1

    def reopen(self, why: str) -> None:
        """All partitions say so."""
        for partition in range(4):
            logging.getLogger("engine.task").warning(REOPENING, partition, why, 5.0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield Told(monkeypatch)
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_an_outage_is_one_line_when_it_begins_and_one_every_half_minute(told: Told) -> None:
    told.away(95)
    clients = [line for line in told.lines if not line.startswith("Partition")]
    assert [line.partition(":")[0] for line in clients] == [
        "A broker is away",
        "A broker has been away for 30 s",
        "A broker has been away for 60 s",
        "A broker has been away for 90 s",
    ]
    assert REFUSED in clients[0]
    assert "lines left out" in clients[1]


async def test_its_end_is_told_once_when_every_broker_answers(told: Told) -> None:
    told.away(40)
    await told.look()
    told.now += LOOK_S
    await told.look()  # calm, but nobody answers yet
    told.answers = True
    told.away(1)
    await told.look()  # answers, but a client has failed a moment ago
    before = told.lines
    told.now += LOOK_S
    for _ in range(3):
        await told.look()
    [last] = told.lines[len(before) :]
    assert last == "Every broker answers again: one was away for 43 s"
    told.away(1)
    assert told.lines[-2].startswith("A broker is away")


def test_what_partitions_say_again_and_again_is_said_once_for_all(told: Told) -> None:
    told.reopen(f"{NOT_TAKEN}: NodeNotReadyError()")  # before any client has said a word
    told.away(EVERY_S - 1)
    partitions = [line for line in told.lines if line.startswith("Partition")]
    assert partitions == [
        f"Partition 0: {NOT_TAKEN}: NodeNotReadyError(); reopening from the last commit in 5.0 s",
        "Partition 0: NodeNotReadyError(); reopening from the last commit in 5.0 s",
    ]


def test_partitions_that_fail_for_reasons_of_their_own_are_all_told(told: Told) -> None:
    for _ in range(2):
        told.reopen("another worker has it")
    assert len(told.lines) == 8


def test_where_warnings_are_not_shown_errors_of_the_clients_are(told: Told) -> None:
    logging.getLogger("engine").setLevel(logging.ERROR)
    told.away(1)
    assert any(line.startswith("Unable connect") for line in told.lines)


@pytest.mark.parametrize(
    "line",
    [
        ("aiokafka.consumer.group_coordinator", "Heartbeat failed for group %s because it is rebalancing", "g"),
        ("aiokafka.consumer.fetcher", "Failed fetch messages from %s: %s", 1, "UnknownTopicOrPartitionError"),
        ("aiokafka.cluster", "Topic %s not found in cluster metadata", "t"),
    ],
)
def test_what_is_no_outage_is_told_as_it_is(told: Told, line: tuple[Any, ...]) -> None:
    name, message, *arguments = line
    logging.getLogger(name).error(message, *arguments)
    assert told.lines == [message % tuple(arguments)]


def test_these_are_the_words_of_aiokafka_and_of_ours() -> None:
    source = "".join(map(inspect.getsource, MODULES)).replace('"\n                " ', "")
    for words in CLIENT:
        assert words in source, words
    assert REOPENING in inspect.getsource(task)
    assert NOT_TAKEN in inspect.getsource(producer)
