"""A load as long as one likes, and its judge: nothing on the test's side grows with the number of events.

Each session's events are known by their number; the judge keeps where each session is.
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from tests import tally
from tests.rig import Rig
from tests.stream import EPOCH_MS, Publisher, Running, Sent, observation

OnAnswer = Callable[[dict[str, Any], Message], None]
STILL_S: Final = 20.0
"""Without an answer: no more will come."""


def event(number: int, sessions: int) -> Sent:
    """The events, by number: sessions in turn."""
    return Sent(f"e{number}", f"s{number % sessions}", EPOCH_MS + number, float(number * 7 // 3 % 4))


class Load:
    """Sends from a thread, inside a `with` block, and knows when it sent what."""

    def __init__(self, publisher: Publisher, topic: str, *, sessions: int, rate: float) -> None:
        self.sessions = sessions
        self.sent_at = array("d")
        self._publisher = publisher
        self._topic = topic
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._publisher.flush()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            number = len(self.sent_at)
            one = event(number, self.sessions)
            self.sent_at.append(time.monotonic())
            self._publisher.send(self._topic, one.session.encode(), observation(one))
            ahead = began + (number + 1) / self._rate - time.monotonic()
            if ahead > 0.005:
                self._stop.wait(ahead)


class Judge:
    """Reads predictions as they are committed: each must be the next of its session, and show its state."""

    def __init__(self, rig: Rig, load: Load, on_answer: OnAnswer | None = None) -> None:
        """on_answer: called with each prediction, and the record that it came in."""
        self.read = 0
        self.latencies: list[tuple[float, float]] = []
        """When read, and how long after it was sent: every tenth."""
        self._load = load
        self._on_answer = on_answer
        self._states: dict[str, Running] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": rig.broker.bootstrap,
                "group.id": rig.topic("judge"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        topic = rig.topic("predictions")
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(rig.partitions)])

    def look(self, seconds: float) -> None:
        """Reads for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for message in self._consumer.consume(2000, min(left, 0.05)):
                assert message.error() is None, message.error()
                self._judge(json.loads(message.value() or b""), message, time.monotonic())

    def look_until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Reads until something is so."""
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
            self.look(0.02)

    def look_to_the_end(self) -> None:
        """The load has ended: reads until every event is answered, and whether there is an answer too many."""
        read, moved = self.read, time.monotonic()
        while self.read < len(self._load.sent_at):
            self.look(0.1)
            if self.read > read:
                read, moved = self.read, time.monotonic()
            said = f"{self.read} of {len(self._load.sent_at)} answers, and no more within {STILL_S:g} s"
            assert time.monotonic() < moved + STILL_S, said
        self.look(2)  # one too many would come now
        self._consumer.close()
        assert self.read == len(self._load.sent_at)

    def _judge(self, prediction: dict[str, Any], message: Message, now: float) -> None:
        session = prediction["session"]
        state = self._states.setdefault(session, Running())
        number = state.count * self._load.sessions + int(session[1:])
        expected = event(number, self._load.sessions)
        assert prediction["event_id"] == expected.id, f"after {state.count} events of {session}: {prediction}"
        state.add(expected.f0)
        got = tally.decode(prediction)
        assert abs(got["count"] - state.count) < 1e-3, f"{prediction}, recount {state}"
        assert abs(got["sum"] - state.total) < 1e-3, f"{prediction}, recount {state}"
        if self._on_answer is not None:
            self._on_answer(prediction, message)
        self.read += 1
        if self.read % 10 == 0:
            self.latencies.append((now, now - self._load.sent_at[number]))
