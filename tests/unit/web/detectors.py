"""Detectors that have seen something, put into a worker's tables as their owner does."""

from __future__ import annotations

import numpy as np

from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.ordering import OrderingState
from models.drift.singles import Singles
from models.drift.spec import Spec
from tables.drift import Reference, Watch, packed
from tests.unit.web.worker import Worker

NOW = 1_764_374_400_000


def monitor(name: str, version: str, *, ill: bool) -> Monitor:
    """One that has seen 4,000 answers; ill: the last 1,200 of which were less sure."""
    made = Monitor(Spec(name=name, version=version, labels=("no", "yes")))
    sure = np.random.default_rng(3).beta(9, 2, 4000).astype(np.float32)
    if ill:
        sure[2800:] *= 0.7
    n = len(sure)
    at = np.arange(n, dtype=np.int64)
    ones = np.ones(n)
    made.fold(Answers(at.astype(np.int32) * 0, at, NOW + 1000 * at, ones.astype(np.uint16), sure, sure, None))
    return made


def put(worker: Worker, name: str, version: str, *, ill: bool = False) -> Monitor:
    """Commits them. Returns them."""
    made = monitor(name, version, ill=ill)
    key = f"{name}@{version}"
    worker.put(key, packed(Watch(OrderingState(), made.state, Singles())), "drift")
    worker.put(key, packed(Reference(made.spec, made.frozen)), "references")
    return made
