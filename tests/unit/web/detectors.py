"""Detectors that have seen something, put into a worker's tables as their owner does."""

from __future__ import annotations

import numpy as np

from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.ordering import OrderingState
from models.drift.outcomes import Outcome, Outcomes
from models.drift.singles import Singles
from models.drift.spec import Spec
from tables.drift import Reference, Watch, packed
from tests.unit.web.worker import Worker

NOW = 1_764_374_400_000


def monitor(name: str, version: str, *, ill: bool, labels: int = 0) -> Monitor:
    """One that has seen 4,000 answers; ill: the last 1,200 of which were less sure. labels: so many have come, of which
    three in four say that it was right."""
    made = Monitor(Spec(name=name, version=version, labels=("no", "yes")))
    sure = np.random.default_rng(3).beta(9, 2, 4000).astype(np.float32)
    if ill:
        sure[2800:] *= 0.7
    n = len(sure)
    at = np.arange(n, dtype=np.int64)
    ones = np.ones(n)
    made.fold(Answers(at.astype(np.int32) * 0, at, NOW + 1000 * at, ones.astype(np.uint16), sure, sure, None))
    truth = [int(k % 4 > 0) for k in range(labels)]
    outcomes = [Outcome(NOW + k, f"observations/0/{k}", t, (0.2, 0.8)) for k, t in enumerate(truth)]
    made.judge(Outcomes(0, labels - 1, tuple(outcomes), tuple(range(labels))))
    return made


def put(worker: Worker, name: str, version: str, *, ill: bool = False, labels: int = 0) -> Monitor:
    """Commits them. Returns them."""
    made = monitor(name, version, ill=ill, labels=labels)
    key = f"{name}@{version}"
    worker.put(key, packed(Watch(OrderingState(), made.state, Singles())), "drift")
    worker.put(key, packed(Reference(made.spec, made.frozen)), "references")
    return made
