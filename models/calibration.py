"""Probabilities that mean what they say: the manifest's `calibration`, fitted offline, applied to every answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from models.part import Part, Share


class Temperature(Part):
    """softmax(ln p / T): one number that makes all answers less decided (T > 1) or more, and changes no best label."""

    method: Literal["temperature"] = "temperature"
    temperature: Annotated[float, Field(ge=0.01, le=100)]

    def applied(self, p: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, C) probabilities, C >= 2 -> (n, C). Source: Guo et al. 2017."""
        raise NotImplementedError


class Isotonic(Part):
    """Of two labels: the second's probability through a growing, piecewise linear function."""

    method: Literal["isotonic"] = "isotonic"
    given: Annotated[tuple[Share, ...], Field(min_length=1, max_length=1024)]
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
        """(n, 2) probabilities -> (n, 2). Source: Zadrozny and Elkan 2002."""
        raise NotImplementedError


Calibration = Annotated[Temperature | Isotonic, Field(discriminator="method")]
