"""The ONNX graph of a decoder.

Inputs:  input_ids i64 [B, S]; seqlens_k i32 [B], tokens of each row after the run less one; total_sequence_length
         i32 [1], the largest of them; logits_rows i64 [N], positions of the flattened [B * S] whose logits are wanted;
         past_key_values.{layer}.{key,value} f32 [B, kv_heads, T, head_dim].
Outputs: logits f32 [N, vocabulary]; present.{layer}.{key,value}, to be bound to the memory of their past.

More than one new token (S > 1) on top of a past needs B = 1: GroupQueryAttention's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from core.errors import ConversionError
from models.convert.gguf.source import Shape, Source, rotations
from models.convert.gguf.weights import BLOCK, Blocks, Weights
from models.engine import Array

if TYPE_CHECKING:
    import onnx

MICROSOFT: Final = "com.microsoft"
OPSETS: Final = {"": 21, MICROSOFT: 1}
IR: Final = 10


class _Nodes:
    """Nodes and initializers of a graph in the making; each node is named by its first output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, name: str, array: Array) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = next(output for output in outputs if output)
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        return name


class Graph:
    """Makes the graph of one model."""

    def __init__(self, source: Source, shape: Shape, *, int4: bool, accuracy: int) -> None:
        """int4: linear layers in blocks of 4 bits. accuracy: 1 computes them in float32; 4 rounds their inputs to 8
        bits, and so does the head then, where the file has it in 8 bits; gate and up stay in float32 all the same,
        since their inputs have outliers: of SmolLM2-135M's error in logits, .59 rms, .45 goes with them, for a tenth
        of a token's time."""
        self._source, self._shape = source, shape
        self._weights = Weights(source, shape)
        self._int4, self._accuracy = int4, accuracy
        self._parts = _Nodes()
        self._sums: dict[str, str] = {}
        """Input -> the sums of its blocks."""

    def build(self) -> onnx.ModelProto:
        """The model, with its weights inside."""
        from onnx import TensorProto, helper

        shape, parts = self._shape, self._parts
        for name, array in zip(("cos", "sin"), rotations(self._source, shape), strict=True):
            parts.constant(name, array)
        stream = self._embed()
        norm = self._norm("blk.0.attn_norm")
        x = parts.add(
            "SimplifiedLayerNormalization", [stream, norm], ["x"], axis=-1, epsilon=shape.epsilon, stash_type=1
        )
        for layer in range(shape.layers):
            stream, x = self._layer(layer, stream, x)
        self._head(x)
        past: list[Any] = []
        present: list[Any] = []
        for layer in range(shape.layers):
            for part in ("key", "value"):
                for names, values, size in ((past, "past_key_values", "T"), (present, "present", "T2")):
                    dims: list[str | int | None] = ["B", shape.kv_heads, size, shape.head_dim]
                    names.append(helper.make_tensor_value_info(f"{values}.{layer}.{part}", TensorProto.FLOAT, dims))
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["B"]),
            helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, [1]),
            helper.make_tensor_value_info("logits_rows", TensorProto.INT64, ["N"]),
            *past,
        ]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", shape.vocabulary])
        graph = helper.make_graph(parts.nodes, "decoder", inputs, [logits, *present], parts.initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="homunculus")

    def _embed(self) -> str:
        parts, name = self._parts, "token_embd.weight"
        if self._eight_bits(name):
            blocks = Blocks.of(self._source, name)
            parts.constant("embedding.codes", blocks.codes)
            parts.constant("embedding.scales", blocks.scales)
            parts.constant("embedding.shape", np.array([self._shape.vocabulary, self._shape.width], np.int64))
            flat = parts.add("Reshape", ["embedding.codes", "embedding.shape"], ["embedding.flat"])
            return parts.add(
                "GatherBlockQuantized",
                [flat, "input_ids", "embedding.scales"],
                ["embedded"],
                domain=MICROSOFT,
                bits=8,
                block_size=BLOCK,
                gather_axis=0,
                quantize_axis=1,
            )
        parts.constant("embedding", self._source.dense(name))
        return parts.add("Gather", ["embedding", "input_ids"], ["embedded"])

    def _layer(self, layer: int, stream: str, x: str) -> tuple[str, str]:
        """One block. Returns the residual stream and its norm for the next."""
        parts, shape, of, at = self._parts, self._shape, f"blk.{layer}.", f"{layer}."
        qkv = self._linear(x, f"{at}qkv", [f"{of}attn_{name}.weight" for name in "qkv"])
        past = [f"past_key_values.{layer}.{name}" for name in ("key", "value")]
        present = [f"present.{layer}.{name}" for name in ("key", "value")]
        attended = parts.add(
            "GroupQueryAttention",
            [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos", "sin"],
            [f"{at}attended", *present],
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=float(1 / np.sqrt(shape.head_dim)),
            local_window_size=shape.window,
        )
        out = self._linear(attended, f"{at}out", [f"{of}attn_output.weight"])
        stream, x = self._skip(stream, out, f"{of}ffn_norm", f"{at}middle")
        both = self._linear(x, f"{at}gate_up", [f"{of}ffn_gate.weight", f"{of}ffn_up.weight"], accurate=True)
        parts.add("Split", [both], [f"{at}gate", f"{at}up"], axis=-1, num_outputs=2)
        parts.add("Sigmoid", [f"{at}gate"], [f"{at}sigmoid"])
        parts.add("Mul", [f"{at}gate", f"{at}sigmoid"], [f"{at}silu"])
        gated = parts.add("Mul", [f"{at}silu", f"{at}up"], [f"{at}gated"])
        down = self._linear(gated, f"{at}down", [f"{of}ffn_down.weight"])
        last = layer == shape.layers - 1
        return self._skip(stream, down, "output_norm" if last else f"blk.{layer + 1}.attn_norm", f"{at}end", last)

    def _head(self, x: str) -> None:
        parts, shape = self._parts, self._shape
        parts.constant("flat", np.array([-1, shape.width], np.int64))
        flat = parts.add("Reshape", [x, "flat"], ["x_flat"])
        wanted = parts.add("Gather", [flat, "logits_rows"], ["x_wanted"])
        name = "token_embd.weight" if shape.tied else "output.weight"
        if self._int4 and self._accuracy == 4 and self._source.kind(name) == "Q8_0":
            if not (shape.tied and self._eight_bits(name)):
                blocks = Blocks.of(self._source, name)
                parts.constant("head.codes", blocks.codes)
                parts.constant("head.scales", blocks.scales)
            of = "embedding" if shape.tied and self._eight_bits(name) else "head"
            self._bits(wanted, "logits", f"{of}.codes", f"{of}.scales", shape.width, shape.vocabulary, 8, 4)
        elif shape.tied and not self._eight_bits(name):
            parts.add("Gemm", [wanted, "embedding"], ["logits"], transB=1)
        else:
            parts.constant("head", self._source.dense(name).T)
            parts.add("MatMul", [wanted, "head"], ["logits"])

    def _eight_bits(self, name: str) -> bool:
        """Whether the embedding stays as the file has it."""
        return self._int4 and self._source.kind(name) == "Q8_0"

    def _norm(self, name: str) -> str:
        return self._parts.constant(name, self._weights.vector(f"{name}.weight"))

    def _skip(self, stream: str, change: str, norm: str, name: str, last: bool = False) -> tuple[str, str]:
        """Adds to the residual stream, and gives its norm."""
        outputs = [f"{name}.norm"] if last else [f"{name}.norm", "", "", f"{name}.stream"]
        self._parts.add(
            "SkipSimplifiedLayerNormalization",
            [stream, change, self._norm(norm)],
            outputs,
            domain=MICROSOFT,
            epsilon=self._shape.epsilon,
        )
        return outputs[-1], outputs[0]

    def _linear(self, x: str, name: str, tensors: Sequence[str], *, accurate: bool = False) -> str:
        """x times the matrices side by side, and their biases. accurate: in float32 whatever was asked for."""
        parts, bias = self._parts, self._weights.bias(tensors)
        to = name if bias is None else f"{name}.unbiased"
        if self._int4:
            self._quantised(x, to, self._weights.blocks(tensors), 1 if accurate else self._accuracy)
        else:
            parts.add("MatMul", [x, parts.constant(f"{name}.weight", self._weights.stacked(tensors))], [to])
        if bias is not None:
            parts.add("Add", [to, parts.constant(f"{name}.bias", bias)], [name])
        return name

    def _quantised(self, x: str, name: str, blocks: Blocks, accuracy: int) -> None:
        """MatMulNBits with its quick path, which knows no minimum: what that adds is the sum of each block of x times
        the block's offset, a matrix product 32 times smaller."""
        parts, (rows, count, _) = self._parts, blocks.codes.shape
        to = name if blocks.offsets is None else f"{name}.centred"
        parts.constant(f"{name}.codes", blocks.packed)
        parts.constant(f"{name}.scales", blocks.scales)
        self._bits(x, to, f"{name}.codes", f"{name}.scales", count * BLOCK, rows, blocks.bits, accuracy)
        if blocks.offsets is not None:
            parts.add(
                "MatMul",
                [self._block_sums(x, count), parts.constant(f"{name}.offsets", blocks.offsets.T)],
                [f"{name}.shift"],
            )
            parts.add("Add", [to, f"{name}.shift"], [name])

    def _bits(
        self, x: str, to: str, codes: str, scales: str, columns: int, rows: int, bits: int, accuracy: int
    ) -> None:
        self._parts.add(
            "MatMulNBits",
            [x, codes, scales],
            [to],
            domain=MICROSOFT,
            K=columns,
            N=rows,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=accuracy,
        )

    def _block_sums(self, x: str, count: int) -> str:
        """The sum of every 32 values of x. Computed once for all matrices that take x."""
        parts = self._parts
        if x not in self._sums:
            if "sums.axis" not in self._sums:
                self._sums["sums.axis"] = parts.constant("sums.axis", np.array([3], np.int64))
            cut = f"sums.{count}"
            if cut not in self._sums:
                self._sums[cut] = parts.constant(cut, np.array([0, 0, count, BLOCK], np.int64))
            parts.add("Reshape", [x, cut], [f"{x}.blocks"])
            self._sums[x] = parts.add("ReduceSum", [f"{x}.blocks", "sums.axis"], [f"{x}.sums"], keepdims=0)
        return self._sums[x]


def checked(shape: Shape, *, int4: bool) -> None:
    """Raises ConversionError for sizes that the operators don't take."""
    if shape.head_dim % 16 or shape.heads % shape.kv_heads:
        raise ConversionError(
            f"{shape.heads} heads of {shape.head_dim} over {shape.kv_heads}: not what attention takes"
        )
    if int4 and shape.width % BLOCK:
        raise ConversionError(f"int4 needs a width that {BLOCK} divides; it is {shape.width}")
