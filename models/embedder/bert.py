"""BERT's encoder in plain numpy and float64: what a converted graph is measured against, and nothing that is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError

Floats = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Bert:
    """The weights by their names, and the forward pass of one text as the paper has it (Devlin et al., 2018)."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]) -> None:
        """config: of transformers' BertConfig. Raises ConversionError where a weight is missing."""
        self.size = int(config["hidden_size"])
        self.heads = int(config["num_attention_heads"])
        self.layers = int(config["num_hidden_layers"])
        self.epsilon = float(config["layer_norm_eps"])
        self._prefix = "bert." if any(name.startswith("bert.") for name in weights) else ""
        self._weights = weights

    def weight(self, name: str) -> NDArray[np.float32]:
        """By its name, without the model's own prefix. Raises ConversionError."""
        try:
            return self._weights[self._prefix + name]
        except KeyError:
            raise ConversionError(f"the weights have no {self._prefix}{name}") from None

    def hidden(self, tokens: Sequence[int]) -> Floats:
        """(tokens, size): the last layer's states of one text."""
        x = self._wide("embeddings.word_embeddings.weight")[np.asarray(tokens)]
        x = x + self._wide("embeddings.position_embeddings.weight")[: len(tokens)]
        x = self._normed(x + self._wide("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for number in range(self.layers):
            layer = f"encoder.layer.{number}."
            query, key, value = (
                self._heads(self._dense(x, f"{layer}attention.self.{part}")) for part in ("query", "key", "value")
            )
            scores = np.einsum("hqd,hkd->hqk", query, key) / math.sqrt(query.shape[-1])
            share = np.exp(scores - scores.max(axis=-1, keepdims=True))
            share /= share.sum(axis=-1, keepdims=True)
            told = np.einsum("hqk,hkd->qhd", share, value).reshape(len(tokens), self.size)
            x = self._normed(
                x + self._dense(told, f"{layer}attention.output.dense"), f"{layer}attention.output.LayerNorm"
            )
            wide = self._dense(x, f"{layer}intermediate.dense")
            wide = wide * 0.5 * (1.0 + _erf(wide / math.sqrt(2.0)))
            x = self._normed(x + self._dense(wide, f"{layer}output.dense"), f"{layer}output.LayerNorm")
        return x

    def _wide(self, name: str) -> Floats:
        return self.weight(name).astype(np.float64)

    def _dense(self, x: Floats, name: str) -> Floats:
        return x @ self._wide(f"{name}.weight").T + self._wide(f"{name}.bias")

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def _normed(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)
        scaled: Floats = centred / spread * self._wide(f"{name}.weight") + self._wide(f"{name}.bias")
        return scaled
