"""What an ONNX graph takes and gives, compared with what its manifest says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from core.errors import ManifestError
from models.dtype import Dtype
from models.manifest import Input, Kind, Manifest

SCORES: Final = tuple(dtype.onnx for dtype in Dtype if dtype.floating)
"""Types of outputs that can be probabilities or values."""


class Argument(Protocol):
    """An input or an output of an ONNX Runtime session."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...


def check_signature(manifest: Manifest, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> None:
    """Compares names, element types and shapes, as far as the graph states them; warm-up finds the rest. What graphs
    over tokens take is looked at by who feeds them (models/reader.py).

    Raises ManifestError that names everything that differs.
    """
    wrong = [*([] if manifest.reading else _inputs(manifest, inputs)), *_outputs(manifest, outputs)]
    if wrong:
        raise ManifestError(f"{manifest.identity}: the manifest and the ONNX graph differ: {'; '.join(wrong)}")


def _inputs(manifest: Manifest, graph: Sequence[Argument]) -> list[str]:
    ours, theirs = manifest.inputs, {argument.name: argument for argument in graph}
    wrong = [f"the graph has no input {name!r}, only {sorted(theirs)}" for name in ours if name not in theirs]
    wrong += [f"the graph needs input {name!r}, which the manifest doesn't fill" for name in theirs if name not in ours]
    for name in ours.keys() & theirs.keys():
        wrong += _input(ours[name], theirs[name])
    return wrong


def _input(ours: Input, theirs: Argument) -> list[str]:
    wrong = []
    if theirs.type != ours.dtype.onnx:
        wrong.append(f"input {theirs.name!r} is {theirs.type}, the manifest says {ours.dtype}")
    shape, width = list(theirs.shape), len(ours.fields)
    if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != width):
        wrong.append(f"input {theirs.name!r} has shape {shape}, the manifest fills (n, {width})")
    elif isinstance(shape[0], int):
        wrong.append(f"input {theirs.name!r} takes exactly {shape[0]} rows; export it with a dynamic first dimension")
    return wrong


def _outputs(manifest: Manifest, graph: Sequence[Argument]) -> list[str]:
    theirs = {argument.name: argument for argument in graph}
    wrong = []
    for name in output_names(manifest):
        if name not in theirs:
            wrong.append(f"the graph has no output {name!r}, only {sorted(theirs)}")
        elif theirs[name].type.startswith("seq"):
            wrong.append(f"output {name!r} is {theirs[name].type}; convert with zipmap=False, so that it is a tensor")
        elif theirs[name].type not in SCORES:
            wrong.append(f"output {name!r} is {theirs[name].type}, not one of {', '.join(SCORES)}")
    return wrong


def output_names(manifest: Manifest) -> list[str]:
    """The ONNX outputs that are read; the others, like a classifier's label, are never computed for us."""
    outputs = manifest.outputs
    if manifest.kind is Kind.CLASSIFIER:
        return [str(outputs.probabilities)]
    return [str(outputs.value), *([outputs.interval.output] if outputs.interval else [])]
