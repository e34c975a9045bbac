"""What a decoder's graph is made of: what is said of the model, and its tensors, by the names that GGUF gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.engine import Array

Floats = NDArray[np.float32]

LONGEST: Final = 32_768
"""Tokens of a context: the rotations of more would only make the file larger."""


class Source(ABC):
    """A model that is to be converted."""

    path: Path
    family: str
    """general.architecture."""
    interleaved: bool
    """Whether q and k are laid out for rotations of neighbouring values, and have to be brought to halves."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it calls itself, on one line."""

    @abstractmethod
    def get(self, key: str, default: Any = None) -> Any:
        """A field's value."""

    def of_family(self, key: str, default: Any = None) -> Any:
        """A field under the family's own name. Raises ConversionError where it is missing and there is no default."""
        value = self.get(f"{self.family}.{key}", default)
        if value is None:
            raise ConversionError(f"{self.path.name} doesn't say its {self.family}.{key}")
        return value

    @abstractmethod
    def has(self, tensor: str) -> bool:
        """Whether there is such a tensor."""

    @abstractmethod
    def kind(self, tensor: str) -> str:
        """F32, Q4_1, ..."""

    @abstractmethod
    def shape(self, tensor: str) -> tuple[int, ...]:
        """Outermost first, as numpy has it."""

    @abstractmethod
    def raw(self, tensor: str) -> Array:
        """As it is stored, one row of the matrix a row; of quantised ones the bytes of their blocks."""

    @abstractmethod
    def dense(self, tensor: str) -> Floats:
        """Its values. Raises ConversionError for a kind that isn't known."""

    @abstractmethod
    def tokenizer(self) -> Any:
        """A tokenizers.Tokenizer. Raises ConversionError for kinds that aren't known."""

    @abstractmethod
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends a reply. Raises ConversionError where there is none."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. Make it with Shape.of."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    epsilon: float
    window: int
    """Tokens that a token looks back, itself included; -1: all."""
    tied: bool
    """Whether the embedding is the head, too."""

    @classmethod
    def of(cls, source: Source) -> Self:
        """Raises ConversionError for what the graph can't compute."""
        width, heads = int(source.of_family("embedding_length")), int(source.of_family("attention.head_count"))
        head_dim = int(source.of_family("attention.key_length", width // heads))
        rotated = int(source.of_family("rope.dimension_count", head_dim))
        if rotated != head_dim or int(source.of_family("attention.value_length", head_dim)) != head_dim:
            raise ConversionError(
                f"{source.path.name} rotates {rotated} of {head_dim} values; only all can be converted"
            )
        if any(source.has(f"blk.0.{part}.weight") for part in ("attn_q_norm", "ffn_gate_inp", "attn_sinks")):
            raise ConversionError(f"{source.path.name} normalises q and k, or has experts: that isn't known here")
        context = int(source.of_family("context_length"))
        window = int(source.of_family("attention.sliding_window", 0))
        return cls(
            layers=int(source.of_family("block_count")),
            width=width,
            heads=heads,
            kv_heads=int(source.of_family("attention.head_count_kv", heads)),
            head_dim=head_dim,
            vocabulary=source.shape("token_embd.weight")[0],
            context=min(context, LONGEST),
            epsilon=float(source.of_family("attention.layer_norm_rms_epsilon")),
            window=window if 0 < window < context else -1,
            tied=not source.has("output.weight"),
        )


def rotations(source: Source, shape: Shape) -> tuple[Floats, Floats]:
    """cos and sin of every position's angles: (context, head_dim / 2) each.

    Plain RoPE (Su et al. 2021), linear scaling, and Llama 3.1's factors, which the file has as rope_freqs. Raises
    ConversionError for other scalings.
    """
    base = float(source.of_family("rope.freq_base", 10_000.0))
    inverse = 1.0 / base ** (np.arange(shape.head_dim // 2) * 2.0 / shape.head_dim)
    scaling = str(source.of_family("rope.scaling.type", "none"))
    if scaling == "linear":
        inverse /= float(source.of_family("rope.scaling.factor"))
    elif scaling != "none":
        raise ConversionError(f"{source.path.name} scales its rotations by {scaling!r}; known are none and linear")
    if source.has("rope_freqs.weight"):
        inverse /= source.dense("rope_freqs.weight").astype(np.float64)
    angles = np.outer(np.arange(shape.context), inverse)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
