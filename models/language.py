"""What a manifest says of a language model: its shape, how it ends, and what proves that it computes right."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

TOKENIZER: Final = "tokenizer.json"
TEMPLATE: Final = "chat_template.jinja"

PLACES: Final = ("qkv", "out", "gate_up", "down")
"""Linear layers of a block that an adapter changes."""

Size = Annotated[int, Field(gt=0)]
Token = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class GoldenReply(_Part):
    """A context and the tokens that greedy decoding must answer it with."""

    prompt: Annotated[tuple[Token, ...], Field(min_length=1)]
    reply: Annotated[tuple[Token, ...], Field(min_length=1)]


class Defaults(_Part):
    """How the version samples where a turn says nothing."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Positive = 1.0


class AdapterOf(_Part):
    """The part of an adapter's manifest that says whose it is."""

    base: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """sha256 of manifest.json of the version that it was made for: it changes no other."""
    model: str
    """That version as people name it: NAME@VERSION."""
    rank: Size


class Language(_Part):
    """The part of a decoder's manifest that its runtime reads."""

    layers: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    vocabulary: Size
    context: Size
    """Tokens that it was trained for."""
    weights: Literal["fp32", "fp16", "int8", "int4"] = "fp32"
    adapters: bool = False
    """Whether its graph takes adapters."""
    embeds: bool = False
    """Whether it takes vectors in place of tokens, and positions."""
    hidden: bool = False
    """Whether it gives the last hidden states."""
    end_tokens: Annotated[tuple[Token, ...], Field(min_length=1)]
    """Any of them ends a reply."""
    begin_token: Token | None = None
    """For the template's bos_token."""
    begins: bool = False
    """Whether every context starts with it, also where the template doesn't write it."""
    defaults: Defaults = Defaults()
    golden: tuple[GoldenReply, ...] = ()


def place(layer: int, of: str) -> str:
    """What an adapter's matrices for a linear layer are called in graphs: with .a and .b."""
    return f"lora.{layer}.{of}"
