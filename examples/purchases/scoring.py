"""What a version says of purchases, computed outside of any worker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.purchases.labels import RETURNS
from models import ort
from models.folder import ModelFolder


def scores(version: ModelFolder, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, features) -> (n,): the probability that each customer returns. Blocking."""
    manifest = version.manifest
    (given,) = manifest.inputs
    session = ort.runtime.InferenceSession(str(version.onnx), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run([manifest.outputs.probabilities], {given: x})
    found: NDArray[np.float64] = probabilities[:, manifest.labels.index(RETURNS)].astype(np.float64)
    return found
