"""A manifest for a graph that comes without one: what can be read off it, and what has to be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from core.errors import ManifestError
from models.describing import Sample, described_inputs
from models.graph import Graph, Port
from models.manifest import Decision, Input, InputField, Kind, Manifest, Outputs, Thresholds, mistakes
from models.signature import SCORES

LABELLED: Final = ("tensor(int64)", "tensor(int32)", "tensor(string)")
"""Types of the outputs in which classifiers name the best label, which we don't need."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known of a version beside its graph."""

    name: str
    version: str
    fields: Sequence[str] = ()
    """"a,b,c": every column of every input, in the graph's order; or, one for each input, "INPUT=a,b,c"."""
    labels: Sequence[str] = ()
    output: str | None = None
    """The output that is read, where several could be."""
    decision: Decision | None = None
    made_by: str | None = None
    sample: Sample | None = None
    """What its fields have looked like: a reference is made of those among them."""

    def manifest(self, graph: Graph, files: dict[str, str], classes: Sequence[str] = ()) -> Manifest:
        """The manifest, as far as the graph and this agree.

        files: path -> sha256; classes: what the graph's own nodes call the labels. Raises ManifestError that says what
        to add.
        """
        inputs = inputs_of(graph, self.fields)
        known = graph.said("labels")
        labels = self.labels or (known if isinstance(known, list) else classes)
        shapes = graph.tried({name: len(given.fields) for name, given in inputs.items()})
        kind, outputs = outputs_of(graph, shapes, self.output, bool(labels))
        if kind is Kind.CLASSIFIER and not labels:
            raise ManifestError(f"{graph.where}: its labels aren't in the graph; name them in order: --labels no,yes")
        features = described_inputs(self.sample, inputs, graph.where) if self.sample is not None else {}
        try:
            return Manifest(
                name=self.name,
                version=self.version,
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                labels=tuple(map(str, labels)) if kind is Kind.CLASSIFIER else (),
                files=files,
                thresholds=Thresholds(decision=self.decision),
                features=features,
                made_by=self.made_by,
            )
        except ValidationError as error:
            raise ManifestError(f"{graph.where}: {mistakes(error)}") from None


def inputs_of(graph: Graph, fields: Sequence[str]) -> dict[str, Input]:
    """Each input with the fields of its columns: as given, else as the graph's metadata says (`fields`), else by the
    inputs' own names where each has one column. Raises ManifestError that lists the inputs."""
    said = graph.said("fields")
    columns: dict[str, list[str]] = {}
    if fields:
        columns = _given(graph, fields)
    elif isinstance(said, dict):
        columns = {str(name): [each] if isinstance(each, str) else list(map(str, each)) for name, each in said.items()}
    elif said:
        columns = _dealt(graph, list(map(str, said)))
    elif all(port.width == 1 for port in graph.inputs):
        columns = {port.name: [port.name] for port in graph.inputs}
    if columns.keys() != {port.name for port in graph.inputs}:
        shown = "; ".join(map(str, graph.inputs))
        raise ManifestError(
            f"{graph.where}: which fields fill its inputs ({shown})? Name one for each column, in order: --fields a,b,c"
        )
    inputs = {}
    for port in graph.inputs:
        dtype, names = graph.dtype(port), columns[port.name]
        if port.width not in (None, len(names)):
            raise ManifestError(f"{graph.where}: input {port} needs {port.width} fields, got {len(names)}: {names}")
        try:
            inputs[port.name] = Input(dtype=dtype, fields=tuple(InputField(name=name) for name in names))
        except ValidationError as error:
            raise ManifestError(f"{graph.where}: input {port.name}: {mistakes(error)}") from None
    return inputs


def _given(graph: Graph, fields: Sequence[str]) -> dict[str, list[str]]:
    names = {port.name for port in graph.inputs}
    parts = [one.partition("=") for one in fields]
    if all(name in names for name, _, _ in parts):
        return {name: _words(rest) for name, _, rest in parts}
    return _dealt(graph, [word for one in fields for word in _words(one)])


def _dealt(graph: Graph, words: list[str]) -> dict[str, list[str]]:
    """Fields in order, to the inputs in order, as many as each has columns."""
    if len(graph.inputs) == 1:
        return {graph.inputs[0].name: words}
    widths = [port.width for port in graph.inputs]
    if None in widths or sum(filter(None, widths)) != len(words):
        shown = "; ".join(map(str, graph.inputs))
        raise ManifestError(
            f"{graph.where}: {len(words)} fields can't be dealt to its inputs ({shown}); name those of each: "
            f"--fields {graph.inputs[0].name}=a,b --fields ..."
        )
    columns, at = {}, 0
    for port in graph.inputs:
        columns[port.name] = words[at : at + (port.width or 0)]
        at += port.width or 0
    return columns


def _words(text: str) -> list[str]:
    return [word for word in map(str.strip, text.split(",")) if word]


def outputs_of(
    graph: Graph, shapes: dict[str, Sequence[int]], output: str | None, labelled: bool
) -> tuple[Kind, Outputs]:
    """Which output says what: probabilities where there are labels, or a label beside it, or several columns; else a
    regressor's value.

    shapes: output -> its shape in a run. Raises ManifestError where none or several could be meant.
    """
    scores = [port for port in graph.outputs if port.type in SCORES and len(shapes[port.name]) in (1, 2)]
    if output is not None:
        scores = [port for port in scores if port.name == output]
    elif len(scores) > 1:
        scores = [port for port in scores if "prob" in port.name.lower()] or scores
    shown = "; ".join(map(str, graph.outputs))
    if len(scores) != 1:
        which = f"can't be output {output!r}" if output else "can't be told" if scores else "isn't there"
        raise ManifestError(
            f"{graph.where}: the output with its scores, a tensor of float (rows, columns), {which}; it has {shown}. "
            "Choose with --output NAME"
        )
    chosen = scores[0]
    width = 1 if len(shapes[chosen.name]) == 1 else shapes[chosen.name][1]
    if labelled or width > 1 or any(_is_label(port, shapes) for port in graph.outputs):
        return Kind.CLASSIFIER, Outputs(probabilities=chosen.name)
    return Kind.REGRESSOR, Outputs(value=chosen.name)


def _is_label(port: Port, shapes: dict[str, Sequence[int]]) -> bool:
    shape = shapes.get(port.name, ())
    return port.type in LABELLED and (len(shape) == 1 or tuple(shape[1:]) == (1,))
