"""The ONNX graph of a decoder.

Inputs:  input_ids i64 [B, S]; seqlens_k i32 [B], tokens of each row after the run less one; total_sequence_length
         i32 [1], the largest of them; logits_rows i64 [N], positions of the flattened [B * S] whose logits are wanted;
         past_key_values.{layer}.{key,value} [B, kv_heads, T, head_dim], f16 in a graph of fp16, else f32.
Outputs: logits f32 [N, vocabulary]; present.{layer}.{key,value}, to be bound to the memory of their past.

Where the form asks for it, with defaults for runs that don't bind them:
Inputs:  lora.{layer}.{place}.a [L, in, R] and .b [L, R, out], of the type of the keys, for the places of
         models/language.py; L is 1 or B; x a b is added to what the linear layer makes of x.
         inputs_embeds f32 [B, S, width] (or [1, 1, width]): taken where a token of input_ids is negative.
         position_ids i64 [B, S]: where a token is said to be; below 0: where it is. Of a context's first chunk the
         first position alone counts, and the others follow it: GroupQueryAttention's rule, too.
Outputs: hidden_states f32 [N, width]: what the head makes logits of.

More than one new token (S > 1) on top of a past needs B = 1: GroupQueryAttention's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from core.errors import ConversionError
from models.convert.gguf.form import Form
from models.convert.gguf.nodes import Nodes
from models.convert.gguf.source import Shape, Source, rotations
from models.convert.gguf.weights import BLOCK, Blocks, Weights
from models.language import place

if TYPE_CHECKING:
    import onnx

MICROSOFT: Final = "com.microsoft"
OPSETS: Final = {"": 21, MICROSOFT: 1}
IR: Final = 10


class Graph:
    """Makes the graph of one model."""

    def __init__(self, source: Source, shape: Shape, form: Form) -> None:
        self._source, self._shape, self._form = source, shape, form
        self._weights = Weights(source, shape)
        self._parts = Nodes(form.floats)
        self._sums: dict[str, str] = {}
        """Input -> the sums of its blocks."""

    def build(self) -> onnx.ModelProto:
        """The model, with its weights inside."""
        from onnx import TensorProto, helper

        shape, parts = self._shape, self._parts
        floats = TensorProto.FLOAT16 if self._form.floats == np.float16 else TensorProto.FLOAT
        for name, array in zip(("cos", "sin"), rotations(self._source, shape), strict=True):
            parts.constant(name, array)
        stream, self._places = self._embed(), self._positions()
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
                    names.append(helper.make_tensor_value_info(f"{values}.{layer}.{part}", floats, dims))
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["B"]),
            helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, [1]),
            helper.make_tensor_value_info("logits_rows", TensorProto.INT64, ["N"]),
            *past,
            *parts.inputs,
        ]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", shape.vocabulary])]
        if self._form.hidden:
            outputs.append(helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, ["N", shape.width]))
        graph = helper.make_graph(parts.nodes, "decoder", inputs, [*outputs, *present], parts.initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="homunculus")

    def _embed(self) -> str:
        """What the first layer takes."""
        if not self._form.embeds:
            return self._looked_up("input_ids")
        parts = self._parts
        parts.given("inputs_embeds", np.zeros((1, 1, self._shape.width), np.float32), ["EB", "ES", self._shape.width])
        parts.constant("zero", np.zeros(1, np.int64))
        parts.constant("last", np.full(1, -1, np.int64))
        vectors = parts.add("Less", ["input_ids", "zero"], ["vectors"])
        parts.add("Max", ["input_ids", "zero"], ["tokens"])
        parts.add("Unsqueeze", [vectors, "last"], ["vectors.wide"])
        return parts.add("Where", ["vectors.wide", "inputs_embeds", self._looked_up("tokens")], ["stream"])

    def _positions(self) -> str:
        """Of each token: what is given, else how many are before it."""
        if not self._form.embeds:
            return ""
        from onnx import TensorProto

        parts = self._parts
        parts.given("position_ids", np.full((1, 1), -1, np.int64), ["PB", "PS"])
        for name, value in (("none", 0), ("one", 1)):
            parts.constant(f"index.{name}", np.array(value, np.int64))
        parts.add("Shape", ["input_ids"], ["size"], start=1, end=2)
        parts.add("Squeeze", ["size"], ["size.number"])
        parts.add("Range", ["index.none", "size.number", "index.one"], ["steps"])
        parts.add("Cast", ["seqlens_k"], ["ends"], to=TensorProto.INT64)
        parts.add("Unsqueeze", ["ends", "last"], ["ends.column"])
        parts.add("Sub", ["ends.column", "size.number"], ["before.last"])
        parts.add("Add", ["before.last", "index.one"], ["before"])
        parts.add("Add", ["before", "steps"], ["places"])
        parts.add("Less", ["position_ids", "zero"], ["placed"])
        return parts.add("Where", ["placed", "places", "position_ids"], ["positions"])

    def _looked_up(self, tokens: str) -> str:
        parts, name = self._parts, "token_embd.weight"
        if self._eight_bits(name):
            blocks = Blocks.of(self._source, name)
            parts.constant("embedding.codes", blocks.codes)
            parts.constant("embedding.scales", blocks.scales)
            parts.constant("embedding.shape", np.array([self._shape.vocabulary, self._shape.width], np.int64))
            flat = parts.add("Reshape", ["embedding.codes", "embedding.shape"], ["embedding.flat"])
            return parts.add(
                "GatherBlockQuantized",
                [flat, tokens, "embedding.scales"],
                ["embedded"],
                domain=MICROSOFT,
                bits=8,
                block_size=BLOCK,
                gather_axis=0,
                quantize_axis=1,
            )
        parts.constant("embedding", self._source.dense(name))
        return parts.add("Gather", ["embedding", tokens], ["embedded"])

    def _layer(self, layer: int, stream: str, x: str) -> tuple[str, str]:
        """One block. Returns the residual stream and its norm for the next."""
        parts, shape, of, at = self._parts, self._shape, f"blk.{layer}.", f"{layer}."
        last = layer == shape.layers - 1
        qkv = self._adapted(x, layer, "qkv", [f"{of}attn_{name}.weight" for name in "qkv"], accurate=True)
        past = [f"past_key_values.{layer}.{name}" for name in ("key", "value")]
        present = [f"present.{layer}.{name}" for name in ("key", "value")]
        attended = parts.add(
            "GroupQueryAttention",
            [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos", "sin", self._places],
            [f"{at}attended", *present],
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=float(1 / np.sqrt(shape.head_dim)),
            local_window_size=shape.window,
        )
        out = self._adapted(attended, layer, "out", [f"{of}attn_output.weight"])
        stream, x = self._skip(stream, out, f"{of}ffn_norm", f"{at}middle")
        both = self._adapted(x, layer, "gate_up", [f"{of}ffn_gate.weight", f"{of}ffn_up.weight"], accurate=last)
        parts.add("Split", [both], [f"{at}gate", f"{at}up"], axis=-1, num_outputs=2)
        parts.add("Sigmoid", [f"{at}gate"], [f"{at}sigmoid"])
        parts.add("Mul", [f"{at}gate", f"{at}sigmoid"], [f"{at}silu"])
        gated = parts.add("Mul", [f"{at}silu", f"{at}up"], [f"{at}gated"])
        down = self._adapted(gated, layer, "down", [f"{of}ffn_down.weight"])
        return self._skip(stream, down, "output_norm" if last else f"blk.{layer + 1}.attn_norm", f"{at}end", last)

    def _head(self, x: str) -> None:
        parts, shape = self._parts, self._shape
        parts.constant("flat", np.array([-1, shape.width], np.int64))
        flat = parts.add("Reshape", [x, "flat"], ["x_flat"])
        wanted = parts.add("Gather", [flat, "logits_rows"], ["x_wanted"])
        if self._form.hidden:
            self._single("x_wanted", "hidden_states")
        self._logits(wanted, half := "logits.half" if self._form.floats == np.float16 else "logits")
        if half != "logits":
            self._single(half, "logits")

    def _single(self, x: str, name: str) -> None:
        """x as an output in float32."""
        from onnx import TensorProto

        self._parts.add("Cast", [x], [name], to=TensorProto.FLOAT)

    def _logits(self, wanted: str, to: str) -> None:
        parts, shape = self._parts, self._shape
        name = "token_embd.weight" if shape.tied else "output.weight"
        if self._form.bits and self._form.accuracy == 4 and self._source.kind(name) == "Q8_0":
            if not (shape.tied and self._eight_bits(name)):
                blocks = Blocks.of(self._source, name)
                parts.constant("head.codes", blocks.codes)
                parts.constant("head.scales", blocks.scales)
            of = "embedding" if shape.tied and self._eight_bits(name) else "head"
            self._bits(wanted, to, f"{of}.codes", f"{of}.scales", shape.width, shape.vocabulary, 8, 4)
        elif shape.tied and not self._eight_bits(name):
            parts.add("Gemm", [wanted, "embedding"], [to], transB=1)
        else:
            parts.constant("head", self._source.dense(name).T)
            parts.add("MatMul", [wanted, "head"], [to])

    def _eight_bits(self, name: str) -> bool:
        """Whether the embedding stays as the file has it."""
        return self._form.bits is not None and self._source.kind(name) == "Q8_0"

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

    def _adapted(self, x: str, layer: int, of: str, tensors: Sequence[str], *, accurate: bool = False) -> str:
        """A linear layer, and what the adapters of its rows add."""
        name = f"{layer}.{of}"
        if not self._form.adapters:
            return self._linear(x, name, tensors, accurate=accurate)
        parts, lora = self._parts, place(layer, of)
        rows = sum(self._source.shape(tensor)[0] for tensor in tensors)
        columns, rank = self._source.shape(tensors[0])[1], f"{lora}.rank"
        a = parts.given(f"{lora}.a", np.zeros((1, columns, 0), np.float32), ["L", columns, rank])
        b = parts.given(f"{lora}.b", np.zeros((1, 0, rows), np.float32), ["L", rank, rows])
        base = self._linear(x, f"{name}.base", tensors, accurate=accurate)
        parts.add("MatMul", [x, a], [f"{name}.low"])
        parts.add("MatMul", [f"{name}.low", b], [f"{name}.change"])
        return parts.add("Add", [base, f"{name}.change"], [name])

    def _linear(self, x: str, name: str, tensors: Sequence[str], *, accurate: bool = False) -> str:
        """x times the matrices side by side, and their biases. accurate: in float32 whatever was asked for."""
        parts, bias = self._parts, self._weights.bias(tensors)
        to = name if bias is None else f"{name}.unbiased"
        if self._form.bits is not None:
            blocks = self._weights.blocks(tensors, self._form.bits)
            self._quantised(x, to, blocks, 1 if accurate else self._form.accuracy)
        else:
            parts.add("MatMul", [x, parts.constant(f"{name}.weight", self._weights.stacked(tensors))], [to])
        if bias is not None:
            parts.add("Add", [to, parts.constant(f"{name}.bias", bias)], [name])
        return name

    def _quantised(self, x: str, name: str, blocks: Blocks, accuracy: int) -> None:
        """MatMulNBits with its quick path, which knows no minimum: what that adds is the sum of each block of x times
        the block's offset. Where inputs may be rounded the sums are further columns of x, and the offsets of the
        matrix; else they are a product of their own, 32 times smaller, in float32."""
        parts, count, offsets = self._parts, blocks.codes.shape[1], blocks.offsets
        if offsets is not None and self._form.accuracy == 4:
            x, blocks, offsets = self._with_sums(x, count), blocks.widened, None
        rows, columns, _ = blocks.codes.shape
        to = name if offsets is None else f"{name}.centred"
        parts.constant(f"{name}.codes", blocks.packed)
        parts.constant(f"{name}.scales", blocks.scales)
        self._bits(x, to, f"{name}.codes", f"{name}.scales", columns * BLOCK, rows, blocks.bits, accuracy)
        if offsets is not None:
            parts.add(
                "MatMul",
                [self._block_sums(x, count), parts.constant(f"{name}.offsets", offsets.T)],
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

    def _with_sums(self, x: str, count: int) -> str:
        """x, and behind it the sums that Blocks.widened has columns for. Computed once for all matrices that take x."""
        parts, key = self._parts, f"{x}.wide"
        if key not in self._sums:
            ones = f"ones.{count}"
            summing = Blocks.summing(count)
            if ones not in self._sums:
                self._sums[ones] = parts.constant(f"{ones}.codes", summing.packed)
                parts.constant(f"{ones}.scales", summing.scales)
            sums, rows = f"{x}.sums", len(summing.codes)
            self._bits(x, sums, f"{ones}.codes", f"{ones}.scales", count * BLOCK, rows, 4, 1)
            self._sums[key] = parts.add("Concat", [x, sums], [key], axis=-1)
        return self._sums[key]

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


def checked(shape: Shape, form: Form) -> None:
    """Raises ConversionError for sizes that the operators don't take."""
    if shape.head_dim % 16 or shape.heads % shape.kv_heads:
        raise ConversionError(
            f"{shape.heads} heads of {shape.head_dim} over {shape.kv_heads}: not what attention takes"
        )
    if form.bits and shape.width % BLOCK:
        raise ConversionError(f"{form.weights} needs a width that {BLOCK} divides; it is {shape.width}")
