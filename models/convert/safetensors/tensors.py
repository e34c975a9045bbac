"""The tensors of a folder's safetensors files, mapped into memory: bfloat16 as well, which numpy doesn't know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.folder import plain

FILE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
LARGEST: Final = 100_000_000
"""Bytes of a header, as the format's own readers allow."""
KINDS: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Kind -> how numpy reads it; of bfloat16 the bits, which are the upper half of a float32's."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one is."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    begin: int
    """In bytes of the file."""

    def stored(self) -> NDArray[Any]:
        """As it is in the file; of bfloat16 its bits. Raises ConversionError for a kind that isn't known."""
        if self.kind not in KINDS:
            raise ConversionError(f"{self.file.name} has tensors of {self.kind}; known are {', '.join(KINDS)}")
        found: NDArray[Any] = np.memmap(self.file, KINDS[self.kind], "r", self.begin, self.shape or (1,))
        return found

    def dense(self) -> NDArray[np.float32]:
        """Its values. Raises as `stored` does."""
        stored = np.asarray(self.stored())
        if self.kind == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)


def tensors(folder: Path) -> dict[str, Tensor]:
    """Name -> tensor, of one file or of all that an index names. Raises ConversionError for files that aren't whole."""
    index = folder / INDEX
    if not index.exists():
        return _of(folder / FILE)
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{INDEX} can't be read: {error!r}") from error
    if odd := [file for file in places.values() if not (isinstance(file, str) and plain(file))]:
        raise ConversionError(f"{INDEX} names {odd[0]!r}, which leaves the folder")
    found: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        found |= _of(folder / file)
    if missing := sorted(places.keys() - found.keys()):
        raise ConversionError(f"{INDEX} names {missing[0]}, which {places[missing[0]]} doesn't have")
    return found


def _of(file: Path) -> dict[str, Tensor]:
    """https://github.com/huggingface/safetensors#format: 8 bytes of the header's length, the header, the values."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(LARGEST, size - 8):
                raise ValueError(f"its header has {length:,} bytes, and the file {size:,}")
            header = dict(json.loads(stream.read(length)))
        header.pop("__metadata__", None)
        return {name: _tensor(file, size, 8 + length, name, said) for name, said in header.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{file.name} isn't a safetensors file that can be read: {error}") from error


def _tensor(file: Path, size: int, values: int, name: str, said: dict[str, Any]) -> Tensor:
    begin, end = (values + int(offset) for offset in said["data_offsets"])
    kind, shape = str(said["dtype"]), tuple(int(one) for one in said["shape"])
    width = np.dtype(KINDS[kind]).itemsize if kind in KINDS else None
    if not values <= begin <= end <= size or min(shape, default=0) < 0:
        raise ValueError(f"{name} is said to be at {begin:,} to {end:,} of {size:,} bytes")
    if width is not None and end - begin != width * prod(shape):
        raise ValueError(f"{name} has {end - begin:,} bytes, and the shape {list(shape)} of {kind}")
    return Tensor(file, kind, shape, begin)
