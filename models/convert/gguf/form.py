"""What a converted graph is to be: how its weights are kept, and what it takes and gives besides tokens and logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import DTypeLike

Weights = Literal["fp32", "fp16", "int8", "int4"]

BITS: Final[dict[Weights, int]] = {"int8": 8, "int4": 4}
"""Of the weights of linear layers that are kept in blocks."""


@dataclass(frozen=True, slots=True)
class Form:
    """As `convert` takes it."""

    weights: Weights = "fp32"
    accuracy: Literal[1, 4] = 4
    """Of int8 and int4: 1 computes linear layers in float32; 4 rounds their inputs to 8 bits, and so does the head
    then, where the file has it in 8 bits; q, k and v stay in float32 all the same, and gate and up of the last layer,
    since rounding those costs most."""
    adapters: bool = False
    """Whether rows can be given an adapter each: lora.{layer}.{place}.{a,b}."""
    embeds: bool = False
    """Whether vectors can stand in place of tokens, and positions be given: inputs_embeds, position_ids."""
    hidden: bool = False
    """Whether it gives the last hidden states, too: hidden_states."""

    @property
    def bits(self) -> int | None:
        """Of the linear layers' blocks; None where they are whole."""
        return BITS.get(self.weights)

    @property
    def floats(self) -> DTypeLike:
        """What everything else is kept and computed in, keys and values too."""
        return np.float16 if self.weights == "fp16" else np.float32
