"""Which other files an ONNX model reads: its tensors' external data, found without the onnx package.

ONNX Runtime opens whatever path a tensor names. So before it sees a model we walk the protobuf ourselves, along the
few fields of onnx.proto that can hold a tensor, and jump over everything else.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from core.errors import ManifestError


class _Message(NamedTuple):
    """A message type of onnx.proto: the numbers of those fields that lead to a tensor."""

    nested: Mapping[int, str]


# Field numbers as in onnx/onnx.proto of ONNX 1.20; protobuf numbers never change their meaning.
_MESSAGES: Final[Mapping[str, _Message]] = {
    "model": _Message({7: "graph", 20: "training", 25: "function"}),
    "training": _Message({1: "graph", 2: "graph"}),
    "function": _Message({7: "node", 11: "attribute"}),
    "graph": _Message({1: "node", 5: "tensor", 15: "sparse"}),
    "node": _Message({5: "attribute"}),
    "attribute": _Message({5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"}),
    "sparse": _Message({1: "tensor", 2: "tensor"}),
    "tensor": _Message({13: "entry"}),
}
_KEY, _VALUE, _LOCATION = 1, 2, b"location"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST: Final = 100
"""Subgraphs nest through If, Loop and Scan; protobuf's own parsers stop at 100 as well."""


def external_files(model: Path) -> frozenset[str]:
    """The locations that the model's tensors name, as written in it: relative to its folder, if it is honest.

    Raises ManifestError when the file isn't a protobuf that can be walked.
    """
    if model.stat().st_size == 0:
        raise ManifestError(f"{model.name} is empty")
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return frozenset(_locations(data, 0, len(data), "model", 0))
        except (ValueError, IndexError) as error:
            raise ManifestError(f"{model.name} is no ONNX model: {error}") from error


def _locations(data: mmap.mmap, start: int, end: int, kind: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError(f"messages nest deeper than {_DEEPEST}")
    nested = _MESSAGES[kind].nested
    for number, begin, finish in _fields(data, start, end):
        inner = nested.get(number)
        if inner == "entry":
            entry = {key: data[a:b] for key, a, b in _fields(data, begin, finish)}
            if entry.get(_KEY) == _LOCATION:
                yield entry.get(_VALUE, b"").decode("utf-8")
        elif inner is not None:
            yield from _locations(data, begin, finish, inner, depth + 1)


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, begin, end) of each length-delimited field of one message; numbers are skipped."""
    while at < end:
        tag, at = _varint(data, at, end)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(data, at, end)
            if at + size > end:
                raise ValueError(f"a field of {size} bytes at {at} passes the end of its message")
            yield tag >> 3, at, at + size
            at += size
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > end:
        raise ValueError(f"a number at byte {end} passes the end of its message")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number at byte {at} doesn't end")
