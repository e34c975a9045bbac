"""Orders for tests/clumsy, its workers, and the commands of `faust -A app state` about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any, Final

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from tests.rig import Rig
from tests.worker import ROOT, Worker, until

APP: Final = "tests.clumsy.app"


class Shop:
    """Orders for an application that adds them up; its workers, and the commands about it."""

    def __init__(self, rig: Rig, sessions: int = 40, app: str = APP) -> None:
        self.rig = rig
        self.app = app
        self.sessions = sessions
        self.totals: Counter[str] = Counter()
        self.count = 0
        self.file = rig.folder / "state.zip"

    def worker(self, name: str = "a", **settings: Any) -> Worker:
        return self.rig.worker(name, app=self.app, session_timeout=3, **settings).start().wait_log("is open")

    def order(self, count: int) -> None:
        for _ in range(count):
            session = f"s{self.count % self.sessions}"
            amount = self.count % 7
            self.totals[session] += amount
            order = {"id": f"o{self.count}", "session": session, "amount": amount}
            self.rig.publisher.send(self.rig.topic("orders"), session.encode(), json.dumps(order).encode())
            self.count += 1
        self.rig.publisher.flush()

    def command(self, *words: str, app_id: str | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
        """`faust -A APP WORDS`."""
        return subprocess.run(self._words(*words), timeout=120, check=False, **self._options(app_id, settings))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """The same, under way."""
        return subprocess.Popen(self._words(*words), **self._options(None, {}))

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "faust", "-A", self.app, *words]

    def _options(self, app_id: str | None, settings: dict[str, Any]) -> dict[str, Any]:
        values = {
            "broker": self.rig.broker.url,
            "app_id": app_id or f"{self.rig.prefix}app",
            "topic_prefix": self.rig.prefix,
            "partitions": self.rig.partitions,
            "data_dir": self.rig.folder / "data-command",
            "model_store": self.rig.store,
            "session_timeout": 3,
        } | settings
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")}
        environment |= {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in values.items()}
        return {
            "cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL, "text": True, "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }  # fmt: skip

    def done(self, *words: str, **settings: Any) -> dict[str, Any]:
        """The document of a command that succeeded."""
        found = self.command("state", *words, "--json", **settings)
        assert found.returncode == 0, found.stdout + found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def refused(self, *words: str, **settings: Any) -> str:
        """What a command said that failed."""
        found = self.command("state", *words, **settings)
        assert found.returncode == 1, found.stdout + found.stderr
        assert "Traceback" not in found.stderr, found.stderr
        return found.stdout + found.stderr

    def shown(self) -> dict[str, int]:
        """The totals of all workers' views."""
        items: dict[str, int] = {}
        for worker in self.rig.running():
            answer = worker.get("/tables/totals?limit=1000")
            if answer.status == 200:
                items |= {item["key"]: item["value"] for item in answer.json()["items"]}
        return items

    def wait_exact(self) -> None:
        """Every order is in its session's total, once."""
        what = "the totals are those of a recount"
        until(lambda: self.shown() == dict(self.totals), 60, what=what, alive=self.rig.running())


def wait_committed(shop: Shop, worker: Worker, topic: str = "orders") -> None:
    """Every record is part of a commit, as the group's offsets say."""
    consumer = Consumer({"bootstrap.servers": shop.rig.broker.bootstrap, "group.id": f"{shop.rig.prefix}app"})
    places = [Place(shop.rig.topic(topic), number) for number in range(shop.rig.partitions)]

    def lag() -> int:
        ends = [consumer.get_watermark_offsets(place, 10)[1] for place in places]
        noted = [max(place.offset, 0) for place in consumer.committed(places, 10)]
        return sum(ends) - sum(noted)

    try:
        until(lambda: lag() == 0, 90, what="all is committed", alive=[worker])
    finally:
        consumer.close()
