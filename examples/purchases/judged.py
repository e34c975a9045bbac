"""How good versions were before a drift and after it: by their answers, and by what the others would have answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.purchases.features import matrix
from examples.purchases.labels import Quality, quality
from examples.purchases.ledger import Ledger
from examples.purchases.scoring import scores
from examples.purchases.train import NAME
from models.store import ModelStore

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Judged:
    """One story's figures."""

    before: Quality | None
    """Of the version that drifted, as it answered, from its promotion to the alarm."""
    after: Mapping[str, Quality]
    """Version -> on the purchases that the retrained one has answered alone. That one as it answered, the others as
    they would have answered the very same."""
    apart: float
    """Largest difference between what the retrained one answered there and what it answers outside of the worker."""


def online(ledger: Ledger, version: str, since_ms: int = 0) -> Quality | None:
    """Of a version's own answers to purchases from then on whose 60 days are over; None where there are none."""
    return _quality(ledger, _known(ledger, ledger.of(version), since_ms), ledger.scores)


def judged(
    ledger: Ledger, store: ModelStore, others: Sequence[str], drifted: str, retrained: str, alarm: int
) -> Judged:
    """others: versions to compare with; alarm: the event time of it. Blocking."""
    mine = ledger.of(drifted)
    before = _known(ledger, mine[[ledger.events[place].ts <= alarm for place in mine.tolist()]])
    places = ledger.of(retrained, canary=False)
    x = matrix(ledger.events)[places]
    said = np.full(len(ledger.events), np.nan)
    after: dict[str, Quality] = {}
    known = _known(ledger, places)
    for version in others:
        said[places] = scores(store.fetch(NAME, version), x)
        if (found := _quality(ledger, known, said)) is not None:
            after[version] = found
    said[places] = scores(store.fetch(NAME, retrained), x)
    apart = float(np.abs(said[places] - ledger.scores[places]).max(initial=0.0))
    if (found := _quality(ledger, known, ledger.scores)) is not None:
        after[retrained] = found
    return Judged(_quality(ledger, before, ledger.scores), after, apart)


def _known(ledger: Ledger, places: Places, since_ms: int = 0) -> Places:
    events, purchases = ledger.events, ledger.judge.purchases
    return np.array([p for p in places.tolist() if events[p].ts >= since_ms and purchases.known(events[p].ts)], np.intp)


def _quality(ledger: Ledger, places: Places, said: NDArray[np.float64]) -> Quality | None:
    if not len(places):
        return None
    events, purchases = ledger.events, ledger.judge.purchases
    returned = [purchases.again(events[p].session, events[p].ts) for p in places.tolist()]
    return quality(returned, said[places].tolist())
