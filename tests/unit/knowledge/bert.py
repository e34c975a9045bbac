"""A BERT that is small enough to be made in a test: random weights, real shapes, a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = "[PAD] [UNK] [CLS] [SEP] the a cat dog sleeps barks at night day and ##s . ? query passage :".split()  # noqa: SIM905
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}


def sentence_folder(folder: Path, pooling: str = "mean_tokens", normalise: bool = True, **config: Any) -> Path:
    """A sentence-transformers folder with safetensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if normalise else [])]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(steps)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes | {"word_embedding_dimension": 24}))
    save_file(_weights(), str(folder / "model.safetensors"))
    _tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    dice = np.random.default_rng(7)
    size, wide = 24, 40

    def some(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return dice.normal(0, 0.3, shape).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": some(len(WORDS), size),
        "embeddings.position_embeddings.weight": some(32, size),
        "embeddings.token_type_embeddings.weight": some(2, size),
        "embeddings.LayerNorm.weight": 1 + some(size),
        "embeddings.LayerNorm.bias": some(size),
    }
    for number in range(2):
        layer = f"encoder.layer.{number}."
        for part in ("query", "key", "value"):
            weights[f"{layer}attention.self.{part}.weight"] = some(size, size)
            weights[f"{layer}attention.self.{part}.bias"] = some(size)
        for name, shape in (
            ("attention.output.dense", (size, size)),
            ("intermediate.dense", (wide, size)),
            ("output.dense", (size, wide)),
        ):
            weights[f"{layer}{name}.weight"], weights[f"{layer}{name}.bias"] = some(*shape), some(shape[0])
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            weights[f"{layer}{name}.weight"], weights[f"{layer}{name}.bias"] = 1 + some(size), some(size)
    return weights


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=16)  # as published ones are: it must not count
    tokenizer.enable_truncation(4)
    return tokenizer
