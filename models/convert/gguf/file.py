"""A GGUF file: what it says of its model, and its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from core.errors import ConversionError
from models.convert.gguf.source import Floats, Source
from models.convert.gguf.tokens import end_tokens, tokenizer_of
from models.engine import Array

FAMILIES: Final = {"llama": True, "qwen2": False}
"""general.architecture -> whether q and k are laid out for rotations of neighbouring values (llama.cpp's
LLAMA_ROPE_TYPE_NORM)."""


class GgufFile(Source):
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
        self.interleaved = FAMILIES[self.family]

    @property
    def title(self) -> str:
        return " ".join(str(self.get("general.name", self.path.stem)).split())

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def has(self, tensor: str) -> bool:
        return tensor in self._tensors

    def kind(self, tensor: str) -> str:
        return str(self._tensor(tensor).tensor_type.name)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensor(tensor).shape))

    def raw(self, tensor: str) -> Array:
        return np.asarray(self._tensor(tensor).data)

    def dense(self, tensor: str) -> Floats:
        from gguf.quants import dequantize

        found = self._tensor(tensor)
        try:
            values = dequantize(found.data, found.tensor_type)
        except NotImplementedError as error:
            raise ConversionError(f"{self.path.name}: {tensor} is {self.kind(tensor)}, which isn't known") from error
        return np.asarray(values).reshape(self.shape(tensor)).astype(np.float32)

    def tokenizer(self) -> Any:
        return tokenizer_of(self)

    def end_tokens(self) -> tuple[int, ...]:
        return end_tokens(self)

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise ConversionError(f"{self.path.name} has no tensor {name}")
        return self._tensors[name]
