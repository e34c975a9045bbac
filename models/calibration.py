"""Probabilities that mean what they say: the manifest's `calibration`, fitted offline, applied to every answer."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from models.part import Part, Share

KNOTS: Final = 512
"""Most that describe a function."""
_TINY: Final = np.float32(np.finfo(np.float32).tiny)
"""Stands for 0 in log."""
_STEEP: Final = np.float32(80)
"""Where exp is as good as 0 or infinite, and still a float32."""


class Temperature(Part):
    """softmax(ln p / T): one number that makes all answers less decided (T > 1) or more, and changes no best label."""

    method: Literal["temperature"] = "temperature"
    temperature: Annotated[float, Field(ge=0.01, le=100)]

    def applied(self, p: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, C) probabilities, C >= 2, each row finite -> (n, C), rows that sum to 1. Source: Guo et al. 2017."""
        logs = np.log(np.maximum(p.T, _TINY, dtype=np.float32)) * np.float32(1 / self.temperature)
        if len(logs) == 2:
            second = 1 / (1 + np.exp(np.clip(logs[0] - logs[1], -_STEEP, _STEEP)))
            return _two(second)
        powers = np.exp(logs - logs.max(axis=0))
        return np.ascontiguousarray((powers / powers.sum(axis=0)).T, np.float32)


class Isotonic(Part):
    """Of two labels: the second's probability through a growing, piecewise linear function."""

    method: Literal["isotonic"] = "isotonic"
    given: Annotated[tuple[Share, ...], Field(min_length=1, max_length=KNOTS)]
    """What the graph says: growing."""
    meant: tuple[Share, ...]
    """What is true then: not falling. Before the first and behind the last it stays as it is there."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.given) != len(self.meant):
            raise ValueError(f"given has {len(self.given)} probabilities, meant {len(self.meant)}")
        if any(a >= b for a, b in pairwise(self.given)) or any(a > b for a, b in pairwise(self.meant)):
            raise ValueError("given must grow, and meant must not fall")
        return self

    def applied(self, p: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 2) probabilities, each row finite -> (n, 2). Source: Zadrozny and Elkan 2002."""
        return _two(np.interp(p[:, 1], *self.knots))

    @cached_property
    def knots(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """given and meant."""
        return np.array(self.given), np.array(self.meant)


def _two(second: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """(n, 2) of the second label's probability."""
    p = np.empty((len(second), 2), np.float32)
    p[:, 1] = second
    np.subtract(1, p[:, 1], out=p[:, 0])
    return p


Calibration = Annotated[Temperature | Isotonic, Field(discriminator="method")]
