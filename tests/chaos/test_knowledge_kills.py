"""Documents come, change and go while workers die: what each worker knows at the end is what was published."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from models.embedder.convert import convert
from tests.integration.test_knowledge import has, search, status, wait
from tests.kafka import Broker
from tests.rig import rig_on
from tests.unit.knowledge.bert import sentence_folder
from tests.worker import until

pytestmark = pytest.mark.long

ROUNDS = 6
CHANGES = 60
"""Of each round."""
DOCUMENTS = 40


def test_whatever_dies_each_worker_knows_what_was_published_and_nothing_else(kafka: Broker, tmp_path: Path) -> None:
    dice = random.Random(17)
    with rig_on(kafka, tmp_path) as rig:
        workers = [rig.worker(name).start() for name in ("a", "b")]
        for worker in workers:
            worker.wait_log("is open")
        convert(sentence_folder(tmp_path / "source"), rig.store, name="small", version="1")
        rig.control({"active": "1"}, model="small")
        published: dict[str, tuple[str | None, str]] = {}
        for number in range(ROUNDS):
            for change in range(CHANGES):
                name, mark = f"d{dice.randrange(DOCUMENTS)}", f"mark{number}x{change}"
                if name in published and dice.random() < 0.3:
                    del published[name]
                    value = None
                else:
                    tenant = dice.choice([None, "acme"])
                    published[name] = (tenant, mark)
                    more = {"tenant": tenant} if tenant else {}
                    value = json.dumps({"id": name, "text": f"The cat {mark} sleeps.", **more}).encode()
                rig.publisher.send(rig.topic("documents"), name.encode(), value)
                if change == CHANGES // 2:
                    dice.choice(workers).kill()
            until(rig.publisher.delivered, 60, what="the changes are on their topic", alive=rig.running())
            for worker in workers:
                if not worker.running:
                    worker.start()
        done = {"documents": len(published), "vectors": len(published), "pending": 0, "embedder": "small@1"}
        for worker in workers:
            wait([worker], "it knows all", lambda one: has(done | {"caught_up": True}, one), 120)
            told = status(worker)
            assert told["passages"] == len(published)
            for tenant in (None, "acme"):
                those = {name: mark for name, (whose, mark) in published.items() if whose == tenant}
                found = search(worker, "the cat sleeps", count="50", **({"tenant": tenant} if tenant else {}))
                assert {one["document"]: one["text"] for one in found} == {
                    name: f"The cat {mark} sleeps." for name, mark in those.items()
                }
        rig.terminate()
