"""How a config.json turns positions into angles, in both spellings that transformers has had for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from core.errors import ConversionError
from models.convert.gguf.source import Floats


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE's parameters. Make it with Rotation.of."""

    base: float
    linear: float | None = None
    """What positions are divided by."""
    factors: Floats | None = None
    """(head_dim / 2,): what each frequency is divided by."""

    @classmethod
    def of(cls, config: Mapping[str, Any], who: str) -> Self:
        """config: with rope_theta and rope_scaling, or with rope_parameters, which has both. Raises ConversionError for
        scalings other than linear's and Llama 3's, by name."""
        said = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        base = float(said.get("rope_theta") or config.get("rope_theta") or 10_000.0)
        kind = str(said.get("rope_type") or said.get("type") or "default")
        share = float(said.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
        if share != 1.0:
            raise ConversionError(f"{who} rotates {share:g} of each head's values; only all can be converted")
        try:
            match kind:
                case "default":
                    return cls(base)
                case "linear":
                    return cls(base, linear=float(said["factor"]))
                case "llama3":
                    return cls(base, factors=_llama3(base, _head_dim(config), said))
        except KeyError as error:
            raise ConversionError(f"{who} scales its rotations by {kind!r} and doesn't say its {error}") from None
        raise ConversionError(f"{who} scales its rotations by {kind!r}; known are default, linear and llama3")


def _llama3(base: float, head_dim: int, said: Mapping[str, Any]) -> Floats:
    """Slow frequencies are divided by the factor, quick ones are not, those between by something between: "Llama 3.1"
    as transformers' modeling_rope_utils.py has it (_compute_llama3_parameters)."""
    factor, low, high = (float(said[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(said["original_max_position_embeddings"])
    turns = original / (2 * np.pi) / base ** (np.arange(head_dim // 2) * 2.0 / head_dim)  # over the original context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    found: Floats = (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)
    return found


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
