"""What a version's inputs looked like where it was made: the manifest's `features`, which drift is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from models.part import Finite, Part, Share

KNOTS: Final = 256
"""Most values that describe a number."""
CATEGORIES: Final = 1000
"""Most that are described by name."""
LONGEST: Final = 200
"""Characters of a category's name."""
CELLS: Final = 20_000
"""Knots and categories of all features together: what detectors keep of a version stays under 100 KB."""
_SLACK: Final = 1e-6
"""How far shares may be from summing to 1."""

Category = Annotated[str, StringConstraints(max_length=LONGEST)]


class NumberReference(Part):
    """The distribution of a number: its distribution function at some values (knots), exact there."""

    type: Literal["number"] = "number"
    rows: Annotated[int, Field(ge=1)]
    """Of the sample, missing ones among them."""
    values: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=KNOTS)]
    """The knots, growing: from the smallest to the largest of the sample."""
    up_to: tuple[Share, ...]
    """Of those that aren't missing, the share up to and with each knot: growing, the last is 1."""
    missing: Share = 0.0

    @property
    def cells(self) -> int:
        """Kinds of values that are told apart."""
        return len(self.values)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.up_to) != len(self.values):
            raise ValueError(f"up_to has {len(self.up_to)} shares for {len(self.values)} values")
        if any(a >= b for a, b in pairwise(self.values)) or any(a > b for a, b in pairwise(self.up_to)):
            raise ValueError("values and up_to must grow")
        if abs(self.up_to[-1] - 1) > _SLACK:
            raise ValueError(f"up_to ends with {self.up_to[-1]}: all of the sample is up to its largest value")
        return self


class CategoryReference(Part):
    """The shares of a text's values, or of a number's that only names something."""

    type: Literal["category"] = "category"
    rows: Annotated[int, Field(ge=1)]
    """Of the sample, missing ones among them."""
    shares: Annotated[dict[Category, Share], Field(min_length=1, max_length=CATEGORIES)]
    """Value -> its share of those that aren't missing; a number or a truth is spelt as JSON does: 3, 2.5, true. The
    place in it is what stands for a value in the matrix that detectors get."""
    rest: Share = 0.0
    """Of those that aren't missing, the share of values that aren't named: what is unseen is compared with this."""
    missing: Share = 0.0

    @property
    def cells(self) -> int:
        """Kinds of values that are told apart."""
        return len(self.shares)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if abs((total := sum(self.shares.values()) + self.rest) - 1) > _SLACK:
            raise ValueError(f"shares and rest sum to {total:.9g} instead of 1")
        return self


def spelt(value: bool | float | str) -> str:
    """A category's one name: numbers and truths as JSON has them, whole numbers without a point."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if value == int(value) else repr(value)


FeatureReference = Annotated[NumberReference | CategoryReference, Field(discriminator="type")]

_FEATURES: Final = TypeAdapter(dict[str, FeatureReference])


def packed(features: Mapping[str, FeatureReference]) -> bytes:
    """A manifest's `features` for where they are kept beside what isn't pydantic's; unpacked() reads them."""
    return _FEATURES.dump_json(dict(features))


def unpacked(packed: bytes) -> dict[str, FeatureReference]:
    """What packed() was given, in its order."""
    return _FEATURES.validate_json(packed)
