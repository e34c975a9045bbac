"""What a manifest says of a model that reads a text: how much of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.part import Part


class Reading(Part):
    """Between the field that fills the one input and a graph over tokens stands the tokenizer.json of the folder."""

    tokens: Annotated[int, Field(gt=0)] = 256
    """Of a text, special ones included; what is longer is cut."""
