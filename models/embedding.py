"""What a manifest says of an embedder: how texts become vectors, and what proves that it computes right."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TOKENIZER: Final = "tokenizer.json"

Size = Annotated[int, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Prefix = Annotated[str, Field(max_length=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class GoldenText(_Part):
    """A passage, and the vector that it must become."""

    text: Annotated[str, Field(min_length=1)]
    vector: Annotated[tuple[Finite, ...], Field(min_length=1)]
    tolerance: Annotated[float, Field(gt=0)] = 1e-4
    """Largest absolute difference of a component."""


class Embedding(_Part):
    """The part of an embedder's manifest that its runtime reads."""

    size: Size
    """Components of a vector."""
    tokens: Size = 256
    """Of a text, special ones included; what is longer is cut."""
    output: Annotated[str, Field(min_length=1)] = "hidden"
    """The ONNX output: (batch, tokens, size), or (batch, size) where the graph pools."""
    pooling: Literal["mean", "cls", "graph"] = "mean"
    """How a text's vector is made of its tokens': their mean, the first one's, or by the graph itself."""
    normalised: bool = True
    """Whether vectors are scaled to length 1, so that their product is the cosine."""
    question: Prefix = ""
    """Put before a question: "query: " of the E5 family, an instruction of others."""
    passage: Prefix = ""
    """Put before a passage."""
    golden: tuple[GoldenText, ...] = ()

    @model_validator(mode="after")
    def _golden_fits(self) -> Self:
        for index, example in enumerate(self.golden):
            if len(example.vector) != self.size:
                raise ValueError(f"golden[{index}].vector has {len(example.vector)} components, size is {self.size}")
        return self
