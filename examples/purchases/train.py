"""Trains both versions of repeat-purchase as it could have been done in July 1997, and puts them into a store.

    python -m examples.purchases.train --store DIR

The models learn from the first 120 days, whose answers are known on day 180. The days between give the reference of
their confidence and of their features, and how good they are. What follows is out of time: nothing that they learnt
from, answers included, reaches into it. trainer.py makes later versions with the same `made`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import HomunculusError
from core.events import Observation
from examples.purchases.data import DAY_MS, PACKAGE, observations
from examples.purchases.features import FIELDS, matrix
from examples.purchases.labels import HORIZON_MS, LAPSES, RETURNS, Purchases, auc
from models.convert import convert
from models.feedback import Awaited
from models.folder import ModelFolder
from models.manifest import Decision
from models.quality import Performance
from models.store import ModelStore

NAME: Final = "repeat-purchase"
LABELS: Final = (LAPSES, RETURNS)
LEARN_MS: Final = 120 * DAY_MS
KNOWN_S: Final = (HORIZON_MS + DAY_MS) / 1e3
"""Event time after which every purchase has its label: that somebody hasn't returned is told with the next purchase of
anybody."""
AWAITED_S: Final = KNOWN_S + 30 * DAY_MS / 1e3
"""How long labels may take: in a replay, a month is a moment."""
JUDGED_S: Final = 7 * DAY_MS / 1e3
"""Performance is judged by the week."""
WATCHED: Final = frozenset({"quantity"})
"""Features whose reference the manifest keeps. All customers came in the first twelve weeks, so what they have done up
to now grows by itself: it drifts for certain."""

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Period:
    """Purchases of some days, with the models' input and the answers."""

    x: Floats32
    returned: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Trained:
    """A version in the store."""

    folder: ModelFolder
    auc: float
    """Out of time: from day 180 on, up to the last purchase whose 60 days are over."""
    judged: int


def train(events: Sequence[Observation], store: ModelStore) -> list[Trained]:
    """Trains, converts, checks and publishes both versions: the same events give the same bytes. Blocking, so in a
    thread where there is an event loop.

    Raises ModelError when the ONNX model computes something else than the trained one, or the store holds other content
    under these versions.
    """
    learn, reference, later = _periods(events)
    return [_version(version, make(), learn, reference, later, store) for version, make in candidates().items()]


def candidates() -> Mapping[str, Callable[[], Any]]:
    """version -> an untrained classifier. Scaling is part of it, and so of the graph."""
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "1": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        # Not HistGradientBoosting: skl2onnx 1.20 can't convert it.
        # Large leaves and half of the rows a tree: else it learns the quirks of the first weeks (AUC .71 later on).
        "2": lambda: GradientBoostingClassifier(
            n_estimators=60, max_depth=3, min_samples_leaf=200, subsample=0.5, random_state=0
        ),
    }


def _periods(events: Sequence[Observation]) -> tuple[Period, Period, Period]:
    """What is learnt from, the reference after it, and what is out of time and answered."""
    x, purchases = matrix(events), Purchases(events)
    returned = np.array([purchases.again(each.session, each.ts) for each in events])
    known = np.array([purchases.known(each.ts) for each in events])
    age = np.array([each.ts - events[0].ts for each in events])
    learnt, over = age < LEARN_MS, age >= LEARN_MS + HORIZON_MS
    learn, reference, later = (Period(x[part], returned[part]) for part in (learnt, ~learnt & ~over, over & known))
    return learn, reference, later


def _version(version: str, model: Any, learn: Period, reference: Period, later: Period, store: ModelStore) -> Trained:
    model.fit(learn.x, learn.returned)
    published = made(model, version, reference, "days 1 to 120 of CDNOW", store)
    return Trained(published, auc(later.returned, model.predict_proba(later.x)[:, 1]), len(later.x))


def made(model: Any, version: str, reference: Period, of: str, store: ModelStore) -> ModelFolder:
    """Converts a trained classifier, proves it on the reference, and publishes it.

    reference: purchases that it hasn't learnt from; of: what it has learnt from, for people. Raises ModelError as
    train() does.
    """
    import sklearn

    kind = type(model[-1] if hasattr(model, "steps") else model).__name__
    with tempfile.TemporaryDirectory() as folder:
        converted = convert(
            model,
            FIELDS,
            name=NAME,
            version=version,
            rows=reference.x,
            truth=reference.returned,
            into=Path(folder) / version,
            labels=LABELS,
            decision=Decision(label=RETURNS, above=0.5),
            licence=f"Apache-2.0; trained on CDNOW as distributed in {PACKAGE.requirement} (MIT)",
            made_by=f"examples/purchases/train.py: {kind}, scikit-learn {sklearn.__version__}, {of}",
        )
        told = converted.manifest
        assert told.performance is not None  # made of the truth
        performance = Performance(window_s=JUDGED_S, labels_after_s=KNOWN_S, measured=told.performance.measured)
        features = {name: described for name, described in told.features.items() if name in WATCHED}
        awaited = Awaited(horizon=AWAITED_S)
        told.model_copy(update={"feedback": awaited, "performance": performance, "features": features}).write(
            converted.path
        )
        return store.publish(converted.path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.purchases.train", description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, metavar="DIR", help="model store: a folder or an fsspec URL")
    options = parser.parse_args(arguments)
    try:
        for trained in train(observations(), ModelStore(options.store)):
            print(f"{trained.folder.identity}: AUC {trained.auc:.3f} on {trained.judged:,} purchases after day 180")
    except HomunculusError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
