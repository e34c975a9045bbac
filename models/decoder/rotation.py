"""How a model turns its keys with their position, so that keys can be given another one."""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from models.decoder.network import Slab
from models.decoder.proving import prefill

SEEN: Final = 64
"""Positions that it is learnt from: one chunk."""
CLOSE: Final = 5e-3
"""Of the largest key, how far a key may be from where its rotation puts it: fp16 rounds by 5e-4."""


class Rotation:
    """Rotary embeddings by halves (Su et al. 2021, as in GPT-NeoX): values i and i + head_dim / 2 of a key are a point
    that turns by angles[i] with every position, whatever scaling made the angles."""

    def __init__(self, angles: NDArray[np.float64]) -> None:
        """angles: (head_dim / 2,), radians."""
        self.angles = angles

    @classmethod
    def learn(cls, slab: Slab) -> Self | None:
        """From the keys of one token that is said again and again: in the first layer these differ by their position
        alone. Uses slot 0, which must be empty, and leaves it so. None for a model that turns its keys otherwise."""
        size = min(SEEN, slab.window)
        prefill(slab, 0, [0] * size)
        keys = slab.values[0][0, :, :size].astype(np.float64)
        slab.clear(0)
        half = keys.shape[-1] // 2
        points = keys[..., :half] + 1j * keys[..., half:]
        turned = (points * points[:, :1].conj()).sum(axis=0)
        angles = np.angle(turned[1])
        step = 2
        while step < size:  # what is known of a step tells how often twice as many have gone round
            angles = angles + np.angle(turned[step] * np.exp(-1j * step * angles)) / step
            step *= 2
        expected = points[:, :1] * np.exp(1j * np.arange(size)[:, None] * angles)
        close = np.abs(expected - points).max() <= CLOSE * np.abs(points).max()
        return cls(angles) if close else None

    def shift(self, slab: Slab, slot: int, keep: int, drop: int) -> None:
        """Cuts positions keep .. keep + drop out of a slot: what stands behind them is moved up, and its keys are
        turned back by `drop` positions."""
        length, half = int(slab.lengths[slot]), len(self.angles)
        cos, sin = (part(drop * self.angles).astype(np.float32) for part in (np.cos, np.sin))
        for number, values in enumerate(slab.values):
            moved = values[slot, :, keep + drop : length].astype(np.float32)
            if number % 2 == 0:  # keys; values don't know where they stand
                x, y = moved[..., :half], moved[..., half:]
                moved = np.concatenate([x * cos + y * sin, y * cos - x * sin], axis=-1)
            values[slot, :, keep : length - drop] = moved
        slab.lengths[slot] = length - drop
