"""The features that a version's reference describes, as detectors see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.dtype import Floats
from models.manifest import Manifest
from models.rows import Events


class Watched:
    """How one version's described features are taken from a batch; made once, as Rows are."""

    def __init__(self, manifest: Manifest, fields: Sequence[str], session: Sequence[str]) -> None:
        """fields: the columns of the numbers that of() gets; session: those of its session features."""
        self.names: tuple[str, ...] = tuple(manifest.features)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, events: Events, found: Floats, session: Floats) -> NDArray[np.float32]:
        """(n, len(self)) float32, for Scored.features: NaN where a value is missing (a session feature has none yet),
        a category's place in the reference, -1 where the reference doesn't name it.

        events: the features of n events. found: (n, len(fields)) as numbers() gave it; session: (n, len(session)).
        """
        raise NotImplementedError
