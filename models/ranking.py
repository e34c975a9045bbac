"""What a manifest says of a reranker: how a question and a passage become a score, and what proves that it is right."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from models.part import Finite, Part

TOKENIZER: Final = "tokenizer.json"


class GoldenPair(Part):
    """A question, a passage, and the score that they must get."""

    question: Annotated[str, Field(min_length=1)]
    passage: str
    score: Finite
    tolerance: Annotated[float, Field(gt=0)] = 1e-3
    """Largest absolute difference."""


class Ranking(Part):
    """The part of a reranker's manifest that its runtime reads."""

    tokens: Annotated[int, Field(ge=16)] = 512
    """Of a question and a passage together, special ones included; of what is longer the passage is cut."""
    output: Annotated[str, Field(min_length=1)] = "score"
    """The ONNX output: (batch,) or (batch, 1). The larger it is, the better the passage answers."""
    golden: tuple[GoldenPair, ...] = ()
