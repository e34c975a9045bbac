"""BERT's encoder as an ONNX graph of ONNX Runtime's fused operators: 1.3 to 4 times as quick as plain ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.embedder.bert import Bert
from models.embedder.feed import IDS, MASK

FUSED: Final = "com.microsoft"
OPSET: Final = 20
OUTPUT: Final = "hidden"


def graph_of(bert: Bert) -> bytes:
    """input_ids, attention_mask (batch, tokens) int32 -> hidden (batch, tokens, size) float32.

    Token types are those of a single text and folded into the positions. Raises ConversionError for a missing weight.
    """
    graph = _Graph()
    x = graph.fused(
        "EmbedLayerNormalization",
        [
            IDS,
            "",
            graph.constant("words", bert.weight("embeddings.word_embeddings.weight")),
            graph.constant(
                "positions",
                bert.weight("embeddings.position_embeddings.weight")
                + bert.weight("embeddings.token_type_embeddings.weight")[0],
            ),
            "",
            graph.constant("begin.gain", bert.weight("embeddings.LayerNorm.weight")),
            graph.constant("begin.bias", bert.weight("embeddings.LayerNorm.bias")),
        ],
        "begin",
        second="mask_index",
        epsilon=bert.epsilon,
    )
    for number in range(bert.layers):
        x = _layer(graph, bert, number, x)
    graph.nodes.append(helper.make_node("Identity", [x], [OUTPUT]))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "tokens"]) for name in (IDS, MASK)]
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", "tokens", bert.size])
    made = helper.make_graph(graph.nodes, "embedder", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
    model: onnx.ModelProto = helper.make_model(made, opset_imports=opsets, ir_version=9, producer_name="homunculus")
    return bytes(model.SerializeToString())


def _layer(graph: _Graph, bert: Bert, number: int, x: str) -> str:
    theirs, ours = f"encoder.layer.{number}.", f"layer{number}."

    def weight(name: str, source: str) -> str:
        return graph.constant(ours + name, bert.weight(theirs + source))

    def matrix(name: str, source: str) -> str:
        return graph.constant(ours + name, bert.weight(theirs + source).T)

    parts = [f"{theirs}attention.self.{part}" for part in ("query", "key", "value")]
    all_three = np.concatenate([bert.weight(f"{part}.weight").T for part in parts], axis=1)
    biases = np.concatenate([bert.weight(f"{part}.bias") for part in parts])
    attended = graph.fused(
        "Attention",
        [x, graph.constant(f"{ours}qkv", all_three), graph.constant(f"{ours}qkv.bias", biases), MASK],
        f"{ours}attended",
        num_heads=bert.heads,
    )
    told = graph.plain("MatMul", [attended, matrix("told.weight", "attention.output.dense.weight")], f"{ours}told")
    middle = graph.fused(
        "SkipLayerNormalization",
        [
            told,
            x,
            weight("middle.gain", "attention.output.LayerNorm.weight"),
            weight("middle.shift", "attention.output.LayerNorm.bias"),
            weight("middle.bias", "attention.output.dense.bias"),
        ],
        f"{ours}middle",
        epsilon=bert.epsilon,
    )
    wide = graph.plain("MatMul", [middle, matrix("wide.weight", "intermediate.dense.weight")], f"{ours}wide")
    bent = graph.fused("BiasGelu", [wide, weight("wide.bias", "intermediate.dense.bias")], f"{ours}bent")
    narrow = graph.plain("MatMul", [bent, matrix("narrow.weight", "output.dense.weight")], f"{ours}narrow")
    return graph.fused(
        "SkipLayerNormalization",
        [
            narrow,
            middle,
            weight("end.gain", "output.LayerNorm.weight"),
            weight("end.shift", "output.LayerNorm.bias"),
            weight("end.bias", "output.dense.bias"),
        ],
        f"{ours}end",
        epsilon=bert.epsilon,
    )


class _Graph:
    """Nodes and constants, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def plain(self, kind: str, inputs: list[str], output: str) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output))
        return output

    def fused(self, kind: str, inputs: list[str], output: str, second: str | None = None, **attributes: Any) -> str:
        outputs = [output] if second is None else [output, second]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=output, domain=FUSED, **attributes))
        return output
