"""How soon a document is answered from while many wait."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import numpy as np
import urllib3

from benchmarks import sides
from benchmarks.lab import Lab
from benchmarks.load import Publisher
from benchmarks.registry import Result, benchmark
from benchmarks.worker import Worker
from core.events import Document
from core.topics import CONTROL, DOCUMENTS
from examples.knowledge.minilm import NAME, VERSION, minilm

BULK: Final = 10_000
"""Documents of a load."""
FRESH: Final = 60
"""Documents that come while it waits, one every so many seconds:"""
EVERY_S: Final = 1.0
PASSAGES: Final = 100_000
SIZE: Final = 384
QUESTIONS: Final = 200
STEP: Final = 500
START_S: Final = 120.0
LOOK_S: Final = 0.05
WORDS: Final = 30_000
"""Of the synthetic language; the n-th is used 1/n times as often as the first, as in real ones."""
COMMON: Final = 60
"""Words of it that no question has: they would be stop words."""


@benchmark
def freshness(lab: Lab) -> Iterator[Result]:
    """10,000 documents wait, and one more comes each second: from the broker's acknowledgement of that one to a search
    over HTTP that finds it."""
    store = lab.folder / "embedders"
    minilm(store)
    with lab.run("freshness") as run, sides.ours(lab, run, MODEL_STORE=str(store), COMMIT_INTERVAL="0.05") as worker:
        control = NAME.encode(), msgspec.json.encode({"active": VERSION})
        Publisher(lab.bootstrap).publish(run.topic(CONTROL.name), [control])
        worker.wait_until(lambda: _status(worker).get("embedder") is not None, START_S, "embedder")
        dice = random.Random(11)
        topic = run.topic(DOCUMENTS.name)
        alone = [_one(lab, worker, topic, f"alone{n}") for n in range(10)]
        Publisher(lab.bootstrap).publish(topic, (_document(f"bulk{n}", _text(dice)) for n in range(BULK)))
        began, before, cpu = time.monotonic(), _status(worker), worker.cpu_s()
        waited = []
        for n in range(FRESH):
            next_at = began + n * EVERY_S
            time.sleep(max(0.0, next_at - time.monotonic()))
            waited.append(_one(lab, worker, topic, f"fresh{n}"))
        seconds, after = time.monotonic() - began, _status(worker)
        conditions = lab.conditions(
            queued=BULK,
            still_pending=after["pending"],
            fresh=FRESH,
            alone_p50_s=round(float(np.median(alone)), 3),
            worker_cpu_s=round(worker.cpu_s() - cpu, 1),
        )
        parts = {"p50": float(np.median(waited)), "max": max(waited)}
        yield Result("freshness.p95", float(np.percentile(waited, 95)), "s", conditions, parts, "<= 2 s")
        made = (after["vectors"] - before["vectors"]) / seconds
        yield Result("freshness.bulk", made, "passages/s", conditions | {"seconds": round(seconds, 1)})


def _one(lab: Lab, worker: Worker, topic: str, name: str) -> float:
    """Seconds until a document is found."""
    mark = f"{name}quux"
    Publisher(lab.bootstrap).publish(topic, [_document(name, f"The {mark} is what only this document tells about.")])
    began = time.monotonic()
    path = f"/knowledge/search?{urlencode({'q': f'what is the {mark}', 'count': 1})}"

    def found() -> bool:
        time.sleep(LOOK_S)  # each look embeds a question
        answer = _get(worker, path)
        return bool(answer.get("found")) and answer["found"][0]["document"] == name

    worker.wait_until(found, START_S, f"document {name}")
    return time.monotonic() - began


def _document(name: str, text: str) -> tuple[bytes, bytes]:
    return name.encode(), msgspec.json.encode(Document(name, text))


def _text(dice: random.Random) -> str:
    return "\n\n".join(words(dice, 60) + "." for _ in range(2))


def words(dice: random.Random, count: int, first: int = 1) -> str:
    """Zipf's law: the rank's logarithm is uniform."""
    span = math.log(WORDS / first)
    return " ".join(f"w{int(first * math.exp(span * dice.random()))}x" for _ in range(count))


_pool = urllib3.PoolManager()


def _get(worker: Worker, path: str) -> dict[str, Any]:
    try:
        answer = _pool.request("GET", worker.url + path, timeout=10.0, retries=False)
    except urllib3.exceptions.HTTPError:
        return {}
    told: dict[str, Any] = msgspec.json.decode(answer.data) if answer.status == 200 else {}
    return told


def _status(worker: Worker) -> dict[str, Any]:
    return _get(worker, "/knowledge")
