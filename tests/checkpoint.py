"""Tiny language models as Hugging Face keeps them, with random weights: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
WIDTH, INNER, LAYERS, HEADS, CONTEXT = 64, 96, 2, 4, 256
TOKENS: Final = [int(token) for token in np.random.default_rng(9).integers(0, 60, 40)]
"""What models are asked to go on with."""


@dataclass(frozen=True)
class Form:
    """What differs between folders."""

    config: dict[str, Any] = field(default_factory=dict)
    """Beside what all have."""
    dtype: Any = np.float32
    biases: tuple[str, ...] = ()
    shards: int = 1

    def of(self, name: str, default: Any) -> Any:
        return self.config.get(name, default)


_LLAMA3: Final = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_QWEN2: Final = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
FORMS: Final = {
    "llama": Form(),
    "llama-tied-llama3": Form(
        {"tie_word_embeddings": True, "rope_theta": 500_000.0, "rope_scaling": _LLAMA3, "num_key_value_heads": 1},
        dtype=bfloat16,
    ),
    "llama-linear-shards": Form(
        {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "linear", "factor": 4.0}}, dtype=np.float16, shards=2
    ),
    "llama-biased": Form(
        {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "num_key_value_heads": 4},
        biases=(*_QKV, "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ),
    "qwen2": Form({**_QWEN2, "rope_theta": 1_000_000.0}, biases=_QKV),
    "qwen2-tied": Form({**_QWEN2, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}, biases=_QKV, dtype=bfloat16),
    "qwen2-windowed": Form(
        {**_QWEN2, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, biases=_QKV
    ),
}


def write(form: Form, folder: Path, **config: Any) -> Path:
    """The folder. config: changes that the weights know nothing of."""
    folder.mkdir(parents=True)
    told = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "vocab_size": 256 + 1 + len(SPECIAL),
        "bos_token_id": 258,
        "eos_token_id": 259,
    }
    (folder / "config.json").write_text(json.dumps(told | form.config | config))
    tokenizer().save(str(folder / "tokenizer.json"))
    talk = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(talk))
    sampling = {"do_sample": True, "temperature": 0.7, "repetition_penalty": 1.1, "eos_token_id": [257, 259]}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc0-1.0\n---\n# Tiny\n")
    made = weights(form)
    if form.shards == 1:
        save_file(made, str(folder / "model.safetensors"))
        return folder
    places = {name: f"model-{1 + at % form.shards}-of-{form.shards}.safetensors" for at, name in enumerate(made)}
    for file in set(places.values()):
        save_file({name: made[name] for name in made if places[name] == file}, str(folder / file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def weights(form: Form, seed: int = 4) -> dict[str, NDArray[Any]]:
    """By the names that transformers gives them."""
    chance = np.random.default_rng(seed)
    size = form.of("head_dim", WIDTH // HEADS)
    q, kv, vocabulary = HEADS * size, form.of("num_key_value_heads", 2) * size, 256 + 1 + len(SPECIAL)
    made: dict[str, NDArray[Any]] = {"model.norm.weight": chance.uniform(0.5, 1.5, WIDTH)}
    made["model.embed_tokens.weight"] = chance.normal(0, 1, (vocabulary, WIDTH))
    if not form.of("tie_word_embeddings", False):
        made["lm_head.weight"] = chance.normal(0, 1.5 / np.sqrt(WIDTH), (vocabulary, WIDTH))
    shapes = {
        "self_attn.q_proj": (q, WIDTH),
        "self_attn.k_proj": (kv, WIDTH),
        "self_attn.v_proj": (kv, WIDTH),
        "self_attn.o_proj": (WIDTH, q),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}{norm}.weight"] = chance.uniform(0.5, 1.5, WIDTH)
        for name, (rows, columns) in shapes.items():
            made[f"{at}{name}.weight"] = chance.normal(0, 1.5 / np.sqrt(columns), (rows, columns))
            if name in form.biases:
                made[f"{at}{name}.bias"] = chance.normal(0, 0.5, rows)
    return {name: np.ascontiguousarray(values.astype(form.dtype)) for name, values in made.items()}


def tokenizer() -> Tokenizer:
    """Bytes, one pair of them, and what templates write."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", *SPECIAL]
    made = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return made
