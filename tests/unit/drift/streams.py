"""Answers for detectors, made up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.condition import Change
from models.drift.monitor import Frozen, Monitor, State
from models.drift.spec import Spec

START_MS = 1_767_225_600_000

SPEC = Spec(name="churn", version="3", labels=("no", "yes"))


def answers(
    confidence: NDArray[Any], *, apart_ms: int = 1000, best: NDArray[Any] | None = None, ts: NDArray[Any] | None = None
) -> Answers:
    """Of partition 2, offsets from 0 on."""
    n = len(confidence)
    return Answers(
        np.full(n, 2, np.int32),
        np.arange(n),
        START_MS + np.arange(n) * apart_ms if ts is None else ts,
        np.zeros(n, np.uint16) if best is None else best.astype(np.uint16),
        confidence.astype(np.float32),
        confidence.astype(np.float32),
        None,
    )


def beta(rng: np.random.Generator, *levels: tuple[float, int], spread: float = 20) -> NDArray[np.float64]:
    """Beta distributed, one level after the other: (mean, how many)."""
    return np.concatenate([rng.beta(mean * spread, (1 - mean) * spread, n) for mean, n in levels])


def told(monitor: Monitor, given: Answers, size: int = 500) -> list[Change]:
    """What it says of all of them, batch by batch; without reminders."""
    parts = (given.take(slice(start, start + size)) for start in range(0, len(given), size))
    return [change for part in parts for change in monitor.fold(part) if not change.reminder]


def number(change: Change) -> int:
    """Of the answer that decided."""
    return int(change.source.removeprefix("observations/2/"))


def short(changes: Iterable[Change]) -> list[tuple[str, str, int]]:
    return [(change.kind, change.state, number(change)) for change in changes]


def kinds(changes: Sequence[Change]) -> set[str]:
    return {change.kind for change in changes}


def moved(monitor: Monitor) -> Monitor:
    """Another one, from what its owner keeps."""
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    spec = decode(encode(monitor.spec), type=Spec)
    return Monitor(spec, decode(encode(monitor.state), type=State), decode(encode(monitor.frozen), type=Frozen))
