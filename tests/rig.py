"""What one test has to itself on a shared broker: topics, consumer group, model store, folders and workers."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests import tally
from tests.kafka import Broker
from tests.stream import Publisher, Reader, Sender, Sent, group_offsets
from tests.worker import Worker, free_port, tails, until

logger = logging.getLogger(__name__)


class Rig:
    """One deployment under test. Every worker of it shares the group, the topics and the store.

    partitions is the count of every topic. The folder holds the store, the data folders and the logs.
    """

    def __init__(self, broker: Broker, folder: Path, *, partitions: int = 4) -> None:
        self.broker = broker
        self.folder = folder
        self.partitions = partitions
        self.prefix = f"t{uuid.uuid4().hex[:10]}-"
        self.store = folder / "store"
        self.store.mkdir(exist_ok=True)
        self.publisher = Publisher(broker.bootstrap, idempotent=broker.transactions)
        self.workers: list[Worker] = []
        self.defaults: dict[str, Any] = {}
        """Settings of every worker that aren't the rig's usual ones."""
        self._sender: Sender | None = None
        self._readers: dict[str, Reader] = {}

    def topic(self, name: str) -> str:
        """The test's own topic of that name."""
        return f"{self.prefix}{name}"

    def worker(
        self,
        name: str,
        *,
        app: str = "app",
        arguments: Sequence[str] = (),
        through: Sequence[str] = (),
        **settings: Any,
    ) -> Worker:
        """A worker of the rig, not started yet; settings are those of HOMUNCULUS_*, in lower case."""
        values = {
            "broker": self.broker.url,
            "app_id": f"{self.prefix}app",
            "topic_prefix": self.prefix,
            "partitions": self.partitions,
            "model_store": self.store,
            "data_dir": self.folder / f"data-{name}",
            "worker_id": name,
            "web_port": free_port(),
            "session_timeout": 6,
            **self.defaults,
            **settings,
        }
        environment = {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in values.items() if value is not None}
        worker = Worker(name, self.folder, environment, app=app, arguments=arguments, through=through)
        self.workers.append(worker)
        return worker

    def running(self) -> list[Worker]:
        """The workers that must be running now."""
        return [worker for worker in self.workers if worker.expected]

    def sender(self, *, rate: float = 2000, sessions: int = 200, seed: int = 7) -> Sender:
        """The sender of observations, not started yet: one a rig."""
        assert self._sender is None, "a rig has one sender, or its ids would repeat"
        self._sender = Sender(self.publisher, self.topic("observations"), rate=rate, sessions=sessions, seed=seed)
        return self._sender

    @property
    def sent(self) -> list[Sent]:
        """What the sender has sent so far."""
        assert self._sender is not None, "nothing was sent"
        return self._sender.sent

    def reader(self, name: str) -> Reader:
        """The reader of one of the test's topics; always the same one."""
        if name not in self._readers:
            self._readers[name] = Reader(self.broker.bootstrap, self.topic(name))
        return self._readers[name]

    def control(self, request: Mapping[str, Any], *, model: str = tally.NAME) -> Self:
        """Publishes a request on control."""
        self.publisher.send(self.topic("control"), model.encode(), json.dumps(request).encode())
        until(self.publisher.delivered, 60, what="the request is on control", alive=self.running())
        return self

    def deploy(self, version: str = "1", *, within_s: float = 40.0) -> Self:
        """Puts a version of the tally into the store unless it is there, asks for it, and waits until it is live."""
        if not (self.store / tally.NAME / version).exists():
            tally.publish(self.store, version)
        self.control({"active": version})
        for worker in self.running():
            worker.wait_ready(within_s)
        return self

    def wait_predictions(self, within_s: float = 60.0) -> None:
        """Waits until each event that was sent so far has been answered."""
        reader = self.reader("predictions")
        sent, answered, seen = len(self.sent), set[str](), 0

        def all_answered() -> bool:
            nonlocal seen
            reader.catch_up()
            new = [record.json for record in reader.records[seen:]]
            answered.update(answer["event_id"] for answer in new if answer["role"] != "shadow")
            seen = len(reader.records)
            return len(answered) >= sent

        until(all_answered, within_s, what=f"all {sent} events are answered", alive=self.running())

    def wait_progress(self, events: int, within_s: float = 60.0) -> None:
        """Waits until that many more predictions are committed than have been read so far."""
        reader = self.reader("predictions")
        goal = reader.catch_up() + events
        what = f"{events} more predictions"
        until(lambda: reader.catch_up() >= goal, within_s, what=what, alive=self.running())

    def wait_records(self, topic: str, count: int, within_s: float = 60.0) -> None:
        """Waits until a topic has that many committed records, or more."""
        reader = self.reader(topic)
        what = f"{count} records on {topic}"
        until(lambda: reader.catch_up() >= count, within_s, what=what, alive=self.running())

    def wait_out(self, seconds: float) -> None:
        """Lets that much time pass for a fault; the workers must live through it."""
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, seconds + 5, what="a fault lasts", alive=self.running())

    def terminate(self) -> None:
        """Stops every worker as a supervisor does; each must end cleanly."""
        for worker in self.running():
            code = worker.terminate()
            assert code == 0, f"{worker.name} ended with {code} after SIGTERM\n{tails([worker])}"

    def assert_exact(self, *, repeated: bool = False, within_s: float = 60.0) -> None:
        """The load is over: every event is answered once, or with `repeated` at least once under one id; each answer
        saw the state of a plain recount; the tables say the same; and the workers end cleanly on SIGTERM."""
        self.wait_predictions(within_s)
        tally.assert_tables(self.state, self.sent)
        self.terminate()
        tally.assert_state_of_each(self.reader("predictions").read_out(), self.sent, repeated=repeated)
        if self.broker.transactions:
            self.assert_positions()

    def assert_positions(self) -> None:
        """All workers have ended: the newest markers, and the group's offsets, stand right behind the last event."""
        app_id, observations = f"{self.prefix}app", self.topic("observations")
        markers = self.reader(f"{app_id}-positions-changelog")
        newest = {record.partition: record.json for record in markers.read_out()}
        ends = self.reader("observations")
        ends.read_out()
        marked = {partition: marker["positions"][observations] for partition, marker in newest.items()}
        used = {partition: end for partition, end in ends.positions.items() if end}
        assert {n: at for n, at in marked.items() if at} == used, "the markers aren't at the end of the input"
        published = group_offsets(self.broker.bootstrap, app_id, observations)
        assert {n: at for n, at in published.items() if at > 0} == used, "the group's offsets aren't at the input's end"

    def state(self, session: str, within_s: float = 20.0) -> dict[str, Any]:
        """A session's row in the table, from whichever worker holds it; waited for while partitions move."""
        rows: list[dict[str, Any]] = []

        def found() -> bool:
            answers = [worker.get(f"/tables/sessions/{session}") for worker in self.running()]
            rows.extend(answer.json() for answer in answers if answer.status == 200)
            return bool(rows)

        until(found, within_s, what=f"a worker shows session {session!r}", alive=self.running())
        return rows[0]

    def close(self) -> None:
        """Ends what still runs, and leaves the logs where a failed test shows them."""
        for worker in self.workers:
            worker.close()
        for reader in self._readers.values():
            reader.close()
        logger.warning("logs of the workers:\n%s", tails(self.workers))


@contextmanager
def rig_on(broker: Broker, folder: Path, *, partitions: int = 4) -> Iterator[Rig]:
    """A rig that is closed at the end."""
    rig = Rig(broker, folder, partitions=partitions)
    try:
        yield rig
    finally:
        rig.close()
