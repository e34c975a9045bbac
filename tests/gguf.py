"""Tiny GGUF files of every form that the converter knows, with random weights, and what they must compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

Doubles = NDArray[np.float64]

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
WIDTH, INNER, CONTEXT = 64, 128, 256
EPSILON: Final = 1e-5


@dataclass(frozen=True)
class Form:
    """What differs between files."""

    family: str = "llama"
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    tied: bool = False
    biases: bool = False
    kind: str = "F32"
    """Of the matrices of linear layers."""
    embedding: str = "F32"
    base: float = 10_000.0
    linear: float | None = None
    """The factor of linear scaling."""
    scaling: str = "linear"
    factors: bool = False
    """Whether rotations are scaled as Llama 3.1's are."""
    window: int | None = None
    pre: str = "gpt-2"
    template: str | None = TEMPLATE


FORMS: Final = {
    "llama": Form(),
    "llama-one-kv-head": Form(kv_heads=1, base=500_000.0, pre="llama-bpe", factors=True),
    "smollm2": Form(tied=True, pre="smollm", kind="Q4_1", embedding="Q8_0"),
    "qwen2": Form(family="qwen2", biases=True, tied=True, base=1_000_000.0, pre="qwen2"),
    "qwen2-q4_0": Form(family="qwen2", biases=True, kind="Q4_0", pre="qwen2"),
    "q8_0": Form(kind="Q8_0", embedding="Q8_0"),
    "f16-scaled": Form(kind="F16", linear=4.0),
    "biased-llama": Form(biases=True, kv_heads=4),
    "windowed": Form(window=16),
}


class Tiny:
    """A model of one form: writes itself, and computes by the textbook."""

    def __init__(self, form: Form, seed: int = 4) -> None:
        self.form = form
        self.positions: list[int] | None = None
        """Of the tokens; None: one after the other."""
        self.tokens = [*sorted(ByteLevel.alphabet()), "ab", *SPECIAL]
        self._chance = np.random.default_rng(seed)
        self._raw: dict[str, tuple[NDArray[Any], GGMLQuantizationType]] = {}
        self._dense: dict[str, Doubles] = {}
        self._make()

    def write(self, path: Path) -> Path:
        """The file."""
        form, writer = self.form, GGUFWriter(str(path), self.form.family)
        writer.add_block_count(form.layers)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(form.heads)
        writer.add_head_count_kv(form.kv_heads)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_rope_freq_base(form.base)
        writer.add_rope_dimension_count(WIDTH // form.heads)
        if form.linear is not None:
            writer.add_string(f"{form.family}.rope.scaling.type", form.scaling)
            writer.add_float32(f"{form.family}.rope.scaling.factor", form.linear)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(form.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types([3 if token in SPECIAL else 1 for token in self.tokens])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(self.tokens.index("<|im_end|>"))
        writer.add_bos_token_id(self.tokens.index("<|im_start|>"))
        if form.template is not None:
            writer.add_chat_template(form.template)
        if form.window is not None:
            writer.add_sliding_window(form.window)
        writer.add_string("general.license", "cc0-1.0")
        for name, (raw, kind) in self._raw.items():
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def add(self, tensor: str, change: Doubles) -> None:
        """Changes what the textbook computes with; the file stays as it is."""
        self._dense[tensor] = self._dense[tensor] + change

    def logits(self, tokens: list[int]) -> Doubles:
        """Of the last token, (vocabulary,), in float64: Touvron et al. 2023 (Llama), with grouped queries (Ainslie et
        al. 2023) and rotations (Su et al. 2021), of neighbouring values in llama files and of halves in qwen2's."""
        form, of = self.form, self._dense
        x = of["token_embd.weight"][tokens]
        for layer in range(form.layers):
            at = f"blk.{layer}."
            h = _norm(x, of[f"{at}attn_norm.weight"])
            q, k, v = (self._linear(h, f"{at}attn_{name}") for name in "qkv")
            x = x + self._linear(self._attend(q, k, v), f"{at}attn_output")
            h = _norm(x, of[f"{at}ffn_norm.weight"])
            gate = self._linear(h, f"{at}ffn_gate")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * self._linear(h, f"{at}ffn_up"), f"{at}ffn_down")
        head = of["token_embd.weight" if form.tied else "output.weight"]
        last: Doubles = _norm(x, of["output_norm.weight"])[-1] @ head.T
        return last

    def _attend(self, q: Doubles, k: Doubles, v: Doubles) -> Doubles:
        form, size = self.form, WIDTH // self.form.heads
        count = len(q)
        q, k = self._rotated(q.reshape(count, -1, size)), self._rotated(k.reshape(count, -1, size))
        values = v.reshape(count, -1, size)
        ahead = np.triu(np.full((count, count), -np.inf), 1)
        if form.window is not None:
            ahead += np.tril(np.full((count, count), -np.inf), -form.window)
        out = np.empty((count, form.heads, size))
        for head in range(form.heads):
            shared = head * form.kv_heads // form.heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(size) + ahead
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values[:, shared]
        return out.reshape(count, -1)

    def _rotated(self, x: Doubles) -> Doubles:
        size = x.shape[-1]
        inverse = 1 / self.form.base ** (np.arange(size // 2) * 2 / size)
        if self.form.linear is not None:
            inverse = inverse / self.form.linear
        if self.form.factors:
            inverse = inverse / self._dense["rope_freqs.weight"]
        angles = np.outer(np.arange(len(x)) if self.positions is None else self.positions, inverse)[:, None]
        pairs = (slice(0, None, 2), slice(1, None, 2))
        one, other = pairs if self.form.family == "llama" else (slice(None, size // 2), slice(size // 2, None))
        out = np.empty_like(x)
        out[..., one] = x[..., one] * np.cos(angles) - x[..., other] * np.sin(angles)
        out[..., other] = x[..., one] * np.sin(angles) + x[..., other] * np.cos(angles)
        return out

    def _linear(self, x: Doubles, name: str) -> Doubles:
        y: Doubles = x @ self._dense[f"{name}.weight"].T
        bias = self._dense.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _make(self) -> None:
        form, kv = self.form, WIDTH * self.form.kv_heads // self.form.heads
        self._add("token_embd.weight", form.embedding, len(self.tokens), WIDTH, scale=8.0)
        if not form.tied:
            self._add("output.weight", form.embedding, len(self.tokens), WIDTH)
        if form.factors:
            self._put("rope_freqs.weight", np.linspace(1, 8, WIDTH // form.heads // 2).astype(np.float32), "F32")
        self._put("output_norm.weight", self._near_one(WIDTH), "F32")
        sizes = {"q": (WIDTH, WIDTH), "k": (kv, WIDTH), "v": (kv, WIDTH), "output": (WIDTH, WIDTH)}
        for layer in range(form.layers):
            at = f"blk.{layer}."
            for norm in ("attn_norm", "ffn_norm"):
                self._put(f"{at}{norm}.weight", self._near_one(WIDTH), "F32")
            for name, size in sizes.items():
                self._add(f"{at}attn_{name}.weight", form.kind, *size)
                if form.biases and name != "output":
                    self._put(f"{at}attn_{name}.bias", self._chance.normal(0, 1, size[0]).astype(np.float32), "F32")
            for name, size in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
                self._add(f"{at}ffn_{name}.weight", form.kind, *size)

    def _near_one(self, size: int) -> NDArray[np.float32]:
        return self._chance.uniform(0.5, 1.5, size).astype(np.float32)

    def _add(self, name: str, kind: str, rows: int, columns: int, scale: float = 1.5) -> None:
        values = self._chance.normal(0, scale / np.sqrt(columns), (rows, columns)).astype(np.float32)
        self._put(name, values, kind)

    def _put(self, name: str, values: NDArray[np.float32], kind: str) -> None:
        known = GGMLQuantizationType[kind]
        raw = quantize(values, known)
        self._raw[name] = raw, known
        self._dense[name] = np.asarray(dequantize(raw, known), np.float64).reshape(values.shape)


def _norm(x: Doubles, weight: Doubles) -> Doubles:
    y: Doubles = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight
    return y
