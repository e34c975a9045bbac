"""A language model of two layers and 200,000 random weights: it says nothing that means anything, but what it says
follows from every token of its context, so that a wrong context is heard at once. Real in all else: a GGUF file that is
converted, ONNX Runtime, a tokenizer, a chat template."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

from models.convert.gguf import convert

NAME: Final = "babbler"
WIDTH, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 128, 4096
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def publish(store: Path, version: str = "1", *, seed: int = 1, name: str = NAME, adapters: bool = False) -> Path:
    """Puts a version into a store. Another seed is another model with the same tokenizer. adapters: whether it takes
    any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "babbler.gguf"
        write(path, seed)
        return convert(path, store, name=name, version=version, adapters=adapters).path


def write(path: Path, seed: int) -> None:
    """The file."""
    chance = np.random.default_rng(seed)
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, "ab", *SPECIAL]
    spoken = np.array([len(one) == 1 and (one.isascii() or one == "Ġ") for one in tokens])
    spoken[tokens.index("<|im_end|>")] = True

    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if one in SPECIAL else 1 for one in tokens])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    def add(tensor: str, *shape: int, scale: float = 1.0) -> None:
        values = chance.normal(0, scale / np.sqrt(shape[-1]), shape)
        writer.add_tensor(tensor, values.astype(np.float32))

    add("token_embd.weight", len(tokens), WIDTH, scale=8.0)
    heads = chance.normal(0, 1, (len(tokens), WIDTH)) * spoken[:, None]  # the others' logits are 0: never the largest
    writer.add_tensor("output.weight", heads.astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        of = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{of}{norm}.weight", np.ones(WIDTH, np.float32))
        add(f"{of}attn_q.weight", WIDTH, WIDTH, scale=2.0)
        add(f"{of}attn_k.weight", WIDTH * KV_HEADS // HEADS, WIDTH, scale=2.0)
        add(f"{of}attn_v.weight", WIDTH * KV_HEADS // HEADS, WIDTH, scale=2.0)
        add(f"{of}attn_output.weight", WIDTH, WIDTH, scale=2.0)
        add(f"{of}ffn_gate.weight", INNER, WIDTH)
        add(f"{of}ffn_up.weight", INNER, WIDTH)
        add(f"{of}ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
