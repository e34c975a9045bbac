"""What a question asks for, told by its vector: logistic regression on all-MiniLM-L6-v2, learnt from TREC's questions.

python -m examples.knowledge.intent STORE     puts minilm@1 and intent@1 into a model store, and says how good it is
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.intents import field
from examples.knowledge.minilm import minilm
from examples.knowledge.trec import Labelled, split
from models.device import Device
from models.embedder import Embedder
from models.folder import ModelFolder
from models.inference import InferenceThread

NAME: Final = "intent"
VERSION: Final = "1"
TOGETHER: Final = 64


class Trained(NamedTuple):
    """The version, and what it makes of questions that it hasn't seen."""

    folder: ModelFolder
    accuracy: float
    commonest: float
    """Accuracy of whoever always says the commonest label."""
    asked: int


def intent(store: Path) -> Trained:
    """Trains and converts: a minute or two, for the vectors. Raises PackageError, ConversionError."""
    from sklearn.linear_model import LogisticRegression

    from models.convert import convert

    embedder = Embedder(minilm(store), Device.of("cpu"), InferenceThread())
    train, test = split()
    rows, truth = vectors(embedder, train), [one.label for one in train]
    seen, told = vectors(embedder, test), np.array([one.label for one in test])
    estimator: Any = LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced").fit(rows, truth)
    right = estimator.predict(seen) == told
    labels, counts = np.unique(told, return_counts=True)
    folder = convert(
        estimator,
        [field(embedder.manifest.identity, component) for component in range(embedder.spec.size)],
        name=NAME,
        version=VERSION,
        into=store / NAME / VERSION,
        licence="MIT",
        made_by=f"examples.knowledge.intent: {len(train)} questions of TREC, {len(labels)} kinds",
    )
    return Trained(folder, float(right.mean()), float(counts.max() / counts.sum()), len(test))


def vectors(embedder: Embedder, asked: list[Labelled]) -> NDArray[np.float32]:
    """(n, size): as the worker makes them of messages."""
    texts = [embedder.spec.question + one.text for one in asked]
    return np.concatenate([embedder.vectors(texts[at : at + TOGETHER]) for at in range(0, len(texts), TOGETHER)])


if __name__ == "__main__":
    made = intent(Path(sys.argv[1]))
    print(made.folder.path)
    print(
        f"accuracy {made.accuracy:.3f} on {made.asked} questions held back; commonest kind alone {made.commonest:.3f}"
    )
