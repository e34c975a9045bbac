"""Converters wrap probabilities into a list of dicts by default (ZipMap), which can't be merged into batches: the node
is taken out again, and what it knew of the labels is kept. Needs the onnx package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from core.errors import ManifestError

MAPS: Final = "seq(map("
"""How ONNX Runtime's names for such outputs begin."""
_CLASSES: Final = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


def unzip(model: Path, where: str) -> None:
    """Rewrites the file: a tensor for each ZipMap that is an output. Raises ManifestError without the onnx package."""
    try:
        import onnx
    except ImportError:
        raise ManifestError(
            f"{where}: {model.name} gives its probabilities as a list of dicts (ZipMap). Convert it with "
            "options={id(estimator): {'zipmap': False}}, or install the package onnx, and this takes the node out"
        ) from None
    proto = onnx.load(str(model), load_external_data=False)
    graph, outputs = proto.graph, {output.name: output for output in proto.graph.output}
    for node in [node for node in graph.node if node.op_type == "ZipMap" and node.output[0] in outputs]:
        mapped = outputs[node.output[0]]
        number = mapped.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type or onnx.TensorProto.FLOAT
        shape = [None, len(_classes(node)) or None]
        tensor = onnx.helper.make_tensor_value_info(node.input[0], number, shape)
        graph.node.remove(node)
        if node.input[0] in outputs:
            graph.output.remove(mapped)
        else:
            mapped.CopyFrom(tensor)
    onnx.save(proto, str(model))


def classes(model: Path) -> list[str]:
    """The labels that a classifier's nodes carry, in the order of the probabilities; none where there are none, where
    nodes disagree, or without the onnx package."""
    try:
        import onnx
    except ImportError:
        return []
    proto = onnx.load(str(model), load_external_data=False)
    found = {tuple(labels) for node in proto.graph.node if (labels := _classes(node))}
    return list(found.pop()) if len(found) == 1 else []


def _classes(node: Any) -> list[str]:
    for attribute in node.attribute:
        if attribute.name in _CLASSES:
            texts = [text.decode("utf-8") for text in attribute.strings]
            return texts or list(map(str, attribute.ints))
    return []
