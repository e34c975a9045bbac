"""Adapters in PEFT's layout with random matrices, and what they make of a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.gguf import INNER, WIDTH, Form, Tiny

MODULES: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Peft:
    """One adapter for tests/gguf.py's models."""

    def __init__(self, form: Form, seed: int, rank: int = 4, modules: tuple[str, ...] = tuple(MODULES)) -> None:
        chance = np.random.default_rng(seed)
        kv = WIDTH * form.kv_heads // form.heads
        sizes = {"q_proj": WIDTH, "k_proj": kv, "v_proj": kv, "o_proj": WIDTH, "down_proj": WIDTH}
        self.form, self.rank = form, rank
        self.config: dict[str, Any] = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
        self.tensors: dict[str, NDArray[np.float32]] = {}
        for layer in range(form.layers):
            for module in modules:
                rows = sizes.get(module.partition(".")[2], INNER)
                columns = INNER if module == "mlp.down_proj" else WIDTH
                key = f"base_model.model.model.layers.{layer}.{module}"
                for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                    matrix = chance.normal(0, 1 / np.sqrt(shape[1]), shape).astype(np.float32)
                    self.tensors[f"{key}.lora_{part}.weight"] = matrix

    def write(self, folder: Path) -> Path:
        """As save_pretrained does."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, folder / "adapter_model.safetensors")
        return folder

    def merged(self, seed: int = 4, scale: float = 2.0) -> Tiny:
        """The textbook's model with W + scale B A for every W that is changed."""
        tiny = Tiny(self.form, seed)
        for layer in range(self.form.layers):
            for module, name in MODULES.items():
                key = f"base_model.model.model.layers.{layer}.{module}.lora_"
                if f"{key}A.weight" in self.tensors:
                    change = self.tensors[f"{key}B.weight"].astype(np.float64) @ self.tensors[f"{key}A.weight"]
                    tiny.add(f"blk.{layer}.{name}.weight", scale * self._laid_out(name, change))
        return tiny

    def _laid_out(self, name: str, change: NDArray[np.float64]) -> NDArray[np.float64]:
        """llama.cpp's files have q and k of the Llama family for rotations of neighbours, PEFT's for halves."""
        heads = {"attn_q": self.form.heads, "attn_k": self.form.kv_heads}.get(name, 0)
        if not heads or self.form.family != "llama":
            return change
        return change.reshape(heads, 2, -1, change.shape[1]).swapaxes(1, 2).reshape(change.shape)
