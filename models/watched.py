"""The features that a version's reference describes, as detectors see them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.dtype import Floats
from models.manifest import Manifest, Scalar
from models.reference import CategoryReference
from models.rows import TEXT, Events, numbers

UNSEEN = -1.0
"""Stands for a category that the reference doesn't name."""


class Watched:
    """How one version's described features are taken from a batch; made once, as Rows are."""

    def __init__(self, manifest: Manifest, fields: Sequence[str], session: Sequence[str]) -> None:
        """fields: the columns of the numbers that of() gets; session: those of its session features, the version's
        among them."""
        self.names: tuple[str, ...] = tuple(manifest.features)
        places = {name: place for place, name in enumerate(fields)}
        sessions = {name: place for place, name in enumerate(session)}
        self._found: list[tuple[int, int]] = []
        self._session: list[tuple[int, int]] = []
        self._others: list[tuple[int, str]] = []
        self._categories: list[tuple[int, str, dict[Any, float]]] = []
        inputs = manifest.inputs.values()
        gaps = {field.name: given.default(place) for given in inputs for place, field in enumerate(given.fields)}
        self._filled: list[tuple[int, float]] = []
        for column, (name, reference) in enumerate(manifest.features.items()):
            gap = gaps.get(name) if not reference.missing else None
            if isinstance(reference, CategoryReference):
                self._categories.append((column, name, _codes(reference, gap)))
                continue
            if isinstance(gap, bool | int | float) and np.isfinite(gap):
                self._filled.append((column, float(gap)))
            if name in sessions:
                self._session.append((column, sessions[name]))
            elif name in places:
                self._found.append((column, places[name]))
            else:
                self._others.append((column, name))

    def __len__(self) -> int:
        return len(self.names)

    def of(self, events: Events, found: Floats, session: Floats) -> NDArray[np.float32]:
        """(n, len(self)) float32, for Scored.features: NaN where a value is missing (a session feature has none yet),
        a category's place in the reference, -1 where the reference doesn't name it.

        events: the features of n events. found: (n, len(fields)) as numbers() gave it; session: (n, len(session)). A
        text where a number is described is missing. Where the sample has no gaps, as one that was made for training,
        what fills them in the model's input fills them here. Costs about .02 us a record and number, .07 a category.
        """
        out = np.empty((len(events), len(self.names)), np.float32, order="F")
        with np.errstate(over="ignore"):
            for column, place in self._found:
                out[:, column] = found[:, place]
            for column, place in self._session:
                out[:, column] = session[:, place]
            if self._others:
                others = numbers(events, [name for _, name in self._others])
                for place, (column, _) in enumerate(self._others):
                    out[:, column] = others[:, place]
        out[np.abs(out) == TEXT] = np.nan
        for column, gap in self._filled:
            out[np.isnan(out[:, column]), column] = gap
        for column, name, codes in self._categories:
            code = codes.get
            out[:, column] = [code(event.get(name), UNSEEN) for event in events]
        return out


def _codes(reference: CategoryReference, gap: Scalar | None) -> dict[Any, float]:
    """What an event may say -> what stands for it. A number and the text that spells it are one category.

    gap: what is taken for nothing; None: nothing is.
    """
    codes: dict[Any, float] = {}
    for place, name in enumerate(reference.shares):
        codes[name] = float(place)
    for place, name in enumerate(reference.shares):
        try:
            value = json.loads(name)
        except ValueError:
            continue
        if isinstance(value, bool | int | float):
            codes.setdefault(value, float(place))
    codes[None] = np.nan if gap is None else codes.get(gap, UNSEEN)
    return codes
