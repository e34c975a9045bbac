"""An ONNX file as it is found: what it takes and gives, tried with two rows, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from core.errors import ManifestError
from models import ort
from models.dtype import Dtype
from models.engine import Array
from models.golden import neutral

DTYPES: Final = {dtype.onnx: dtype for dtype in Dtype}
PROBE: Final = 2
"""Rows: enough to see whether a graph takes any number of them."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    @property
    def width(self) -> int | None:
        """Columns of a row; None where the graph leaves it open."""
        if len(self.shape) == 1:
            return 1
        return self.shape[1] if len(self.shape) == 2 and isinstance(self.shape[1], int) else None

    def __str__(self) -> str:
        shown = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name!r}, {self.type} of ({shown})"


class Graph:
    """Make it with Graph.read."""

    def __init__(self, session: Any, where: str) -> None:
        """where: what errors begin with."""
        self._session = session
        self.where = where
        self.inputs = [Port(each.name, each.type, tuple(each.shape or ())) for each in session.get_inputs()]
        self.outputs = [Port(each.name, each.type, tuple(each.shape or ())) for each in session.get_outputs()]
        self._said: Mapping[str, str] = session.get_modelmeta().custom_metadata_map

    @classmethod
    def read(cls, path: Path, where: str) -> Self:
        """Loads the file on the CPU. Raises ManifestError where ONNX Runtime can't."""
        options = ort.runtime.SessionOptions()
        options.log_severity_level = ort.QUIET
        try:
            session = ort.runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ManifestError(f"{where}: {path.name} can't be loaded: {error}") from error
        return cls(session, where)

    def said(self, key: str) -> Any:
        """What the file's metadata holds under a key: a list or an object in JSON, else words between commas."""
        text = self._said.get(key)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        return found if isinstance(found, list | dict) else [word.strip() for word in text.split(",")]

    def dtype(self, port: Port) -> Dtype:
        """Raises ManifestError for an input that no field can fill: not (rows, columns), or of no type that we know."""
        if port.type not in DTYPES:
            raise ManifestError(f"{self.where}: input {port} isn't of a type that fields can fill: {', '.join(DTYPES)}")
        if len(port.shape) != 2:
            raise ManifestError(f"{self.where}: input {port} can't be filled: a model takes (rows, columns) here")
        if isinstance(port.shape[0], int):
            raise ManifestError(
                f"{self.where}: input {port} takes exactly {port.shape[0]} rows; export it with a dynamic first "
                "dimension (torch: dynamic_axes, or dynamic_shapes)"
            )
        return DTYPES[port.type]

    def tried(self, widths: Mapping[str, int]) -> dict[str, Sequence[int]]:
        """Output -> its shape for two rows of zeros, for those outputs that are tensors.

        Raises ManifestError where the run fails.
        """
        names = [port.name for port in self.outputs if port.type.startswith("tensor")]
        rows: dict[str, Array] = {}
        for port in self.inputs:
            dtype = self.dtype(port)
            rows[port.name] = np.full((PROBE, widths[port.name]), neutral(dtype), dtype.numpy)
        try:
            found = self._session.run(names, rows)
        except Exception as error:
            raise ManifestError(f"{self.where}: a run of {PROBE} rows of zeros fails: {error}") from error
        return {name: np.shape(array) for name, array in zip(names, found, strict=True)}
