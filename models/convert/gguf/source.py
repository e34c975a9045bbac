"""A GGUF file: what it says of its model, and its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.engine import Array

Floats = NDArray[np.float32]

FAMILIES: Final = {"llama": True, "qwen2": False}
"""general.architecture -> whether q and k are laid out for rotations of neighbouring values (llama.cpp's
LLAMA_ROPE_TYPE_NORM), and have to be brought back to halves."""
LONGEST: Final = 32_768
"""Tokens of a context: the rotations of more would only make the file larger."""


class Source:
    """An open GGUF file."""

    def __init__(self, path: Path) -> None:
        """Raises ConversionError where it isn't one, or of a family that isn't known here."""
        try:
            from gguf import GGUFReader
        except ImportError:
            raise ConversionError(
                f"{path.name} can't be converted: it needs the extra convert (gguf is missing)"
            ) from None
        self.path = path
        try:
            reader = GGUFReader(str(path))
        except Exception as error:  # a plain ValueError, or whatever numpy says of a short file
            raise ConversionError(f"{path.name} isn't a GGUF file that can be read: {error}") from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.family = str(self.get("general.architecture", ""))
        if self.family not in FAMILIES:
            raise ConversionError(
                f"{path.name} is of the family {self.family or 'without a name'!r}; known are {', '.join(FAMILIES)}"
            )

    @property
    def title(self) -> str:
        """What the file calls its model, on one line."""
        return " ".join(str(self.get("general.name", self.path.stem)).split())

    def get(self, key: str, default: Any = None) -> Any:
        """A field's value."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def of_family(self, key: str, default: Any = None) -> Any:
        """A field under the family's own name. Raises ConversionError where it is missing and there is no default."""
        value = self.get(f"{self.family}.{key}", default)
        if value is None:
            raise ConversionError(f"{self.path.name} doesn't say its {self.family}.{key}")
        return value

    def has(self, tensor: str) -> bool:
        """Whether there is such a tensor."""
        return tensor in self._tensors

    def kind(self, tensor: str) -> str:
        """F32, Q4_1, ..."""
        return str(self._tensor(tensor).tensor_type.name)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Outermost first, as numpy has it."""
        return tuple(int(size) for size in reversed(self._tensor(tensor).shape))

    def raw(self, tensor: str) -> Array:
        """The bytes of its blocks, one row of the matrix a row."""
        return np.asarray(self._tensor(tensor).data)

    def dense(self, tensor: str) -> Floats:
        """Its values. Raises ConversionError for a quantisation that the gguf package doesn't know."""
        from gguf.quants import dequantize

        found = self._tensor(tensor)
        try:
            values = dequantize(found.data, found.tensor_type)
        except NotImplementedError as error:
            raise ConversionError(f"{self.path.name}: {tensor} is {self.kind(tensor)}, which isn't known") from error
        return np.asarray(values).reshape(self.shape(tensor)).astype(np.float32)

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise ConversionError(f"{self.path.name} has no tensor {name}")
        return self._tensors[name]


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
