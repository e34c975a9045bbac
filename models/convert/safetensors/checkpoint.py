"""A language model's folder as Hugging Face keeps it, told in the words of GGUF, so that one converter takes both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.errors import ConversionError
from models.convert.gguf.source import Floats, Source
from models.convert.gguf.tokens import ENDS
from models.convert.safetensors.rotation import Rotation
from models.convert.safetensors.tensors import Tensor, tensors
from models.engine import Array

CONFIG: Final = "config.json"
FAMILIES: Final = ("llama", "qwen2")
"""model_type."""
FACTORS: Final = "rope_freqs.weight"
"""What Llama 3's rotations are divided by: no tensor here, but computed."""
_SIZES: Final = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}
_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
"""GGUF's name of a tensor -> transformers', both without the layer before and the weight or bias behind."""


class Checkpoint(Source):
    """An open folder: config.json, model.safetensors or its shards, tokenizer.json, and what says how it talks."""

    interleaved = False

    def __init__(self, path: Path) -> None:
        """Raises ConversionError where files are missing or can't be read, and for models that aren't known here."""
        self.path = path
        self._config = self._document(CONFIG, needed=True)
        self.family = str(self._config.get("model_type", ""))
        self._refuse()
        self._talk = self._document("tokenizer_config.json")
        self._generation = self._document("generation_config.json")
        self._tensors = tensors(path)
        self._tied = bool(self._config.get("tie_word_embeddings", "lm_head.weight" not in self._tensors))
        self._tokenizer = self._read_tokenizer()
        self._rotation = Rotation.of(self._config, path.name)
        self._fields = self._told()

    @property
    def title(self) -> str:
        return self.path.resolve().name

    def get(self, key: str, default: Any = None) -> Any:
        value = self._fields.get(key)
        return default if value is None else value

    def has(self, tensor: str) -> bool:
        if tensor == FACTORS:
            return self._rotation.factors is not None
        return not (tensor == "output.weight" and self._tied) and self._name(tensor) in self._tensors

    def kind(self, tensor: str) -> str:
        return self._tensor(tensor).kind

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self._tensor(tensor).shape

    def raw(self, tensor: str) -> Array:
        return self._tensor(tensor).stored()

    def dense(self, tensor: str) -> Floats:
        if tensor == FACTORS and self._rotation.factors is not None:
            return self._rotation.factors
        return self._tensor(tensor).dense()

    def tokenizer(self) -> Any:
        return self._tokenizer

    def end_tokens(self) -> tuple[int, ...]:
        named: set[int] = set()
        for document in (self._generation, self._config):
            said = document.get("eos_token_id")
            named |= set(said if isinstance(said, list) else [said]) - {None}
        if (token := self._special("eos_token")) is not None:
            named.add(token)
        known = {t for t, one in self._tokenizer.get_added_tokens_decoder().items() if one.special}
        ends = {t for t in known if self._tokenizer.id_to_token(t) in ENDS} | {int(one) for one in named}
        if not ends:
            raise ConversionError(f"{self.path.name} names no token that ends a reply")
        return tuple(sorted(ends))

    # -- what the folder says -----------------------------------------------------------------------------------------

    def _told(self) -> dict[str, Any]:
        config, begin = self._config, self._config.get("bos_token_id")
        begin = self._special("bos_token") if begin is None else begin
        fields = {
            **{key: self._size(name) for key, name in _SIZES.items()},
            "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
            "attention.sliding_window": self._window(),
            "rope.freq_base": self._rotation.base,
            "rope.scaling.type": "none" if self._rotation.linear is None else "linear",
            "rope.scaling.factor": self._rotation.linear,
        }
        return {
            **{f"{self.family}.{key}": value for key, value in fields.items()},
            **self._sampling(),
            "general.license": self._licence(),
            "tokenizer.chat_template": self._template(),
            "tokenizer.ggml.bos_token_id": begin,
            "tokenizer.ggml.add_bos_token": begin is not None and begin in self._tokenizer.encode("").ids,
        }

    def _size(self, name: str) -> int | None:
        """None where transformers takes it from others. Raises ConversionError."""
        value = self._config.get(name)
        if value is None and name in ("num_key_value_heads", "head_dim"):
            return None
        if not isinstance(value, int) or value < 1:
            raise ConversionError(f"{self.path.name}: {CONFIG} says {name} is {value!r}")
        return value

    def _refuse(self) -> None:
        config, who = self._config, self.path.name
        if self.family not in FAMILIES:
            raise ConversionError(
                f"{who} is of the family {self.family or 'without a name'!r}; known are {', '.join(FAMILIES)}"
            )
        if "quantization_config" in config:
            how = dict(config["quantization_config"] or {}).get("quant_method", "somehow")
            raise ConversionError(f"{who} is quantised ({how}): only floats can be converted; take its GGUF file")
        if not isinstance(config.get("rms_norm_eps"), float):
            raise ConversionError(f"{who}: {CONFIG} says rms_norm_eps is {config.get('rms_norm_eps')!r}")
        if (act := config.get("hidden_act", "silu")) != "silu":
            raise ConversionError(f"{who} has the activation {act!r}; only silu can be converted")

    def _window(self) -> int | None:
        """Raises ConversionError where only some layers have one."""
        config = self._config
        kinds = set(config.get("layer_types") or ())
        if not kinds and config.get("use_sliding_window"):
            first = int(config.get("max_window_layers", 0))  # layers below it see everything
            kinds = {
                "sliding_attention" if layer >= first else "full_attention"
                for layer in range(config["num_hidden_layers"])
            }
        if kinds <= {"full_attention"}:
            return None
        if kinds != {"sliding_attention"}:
            raise ConversionError(
                f"{self.path.name} has layers with {' and '.join(sorted(kinds))}: only one kind can be"
            )
        return int(config["sliding_window"])

    def _sampling(self) -> dict[str, Any]:
        """transformers' own defaults fill what a folder that samples doesn't say (GenerationConfig)."""
        said = self._generation
        found = {"general.sampling.penalty_repeat": said.get("repetition_penalty")}
        if said.get("do_sample"):
            found["general.sampling.temp"] = said.get("temperature", 1.0)
            found["general.sampling.top_k"] = said.get("top_k", 50)
            found["general.sampling.top_p"] = said.get("top_p")
            found["general.sampling.min_p"] = said.get("min_p")
        return found

    def _template(self) -> str | None:
        file = self.path / "chat_template.jinja"
        if file.exists():
            return file.read_text("utf-8")
        said = self._talk.get("chat_template")
        if isinstance(said, list):
            said = {one["name"]: one["template"] for one in said}.get("default")
        return said

    def _licence(self) -> str | None:
        """As the model card's first lines say."""
        card = self.path / "README.md"
        text = card.read_text("utf-8", "replace") if card.exists() else ""
        found = re.match(r"---\n(?:(?!---).*\n)*?license: *(\S+)", text)
        return found[1] if found else None

    def _read_tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        file = self.path / "tokenizer.json"
        try:
            raw = file.read_text("utf-8")
            tokenizer = Tokenizer.from_str(raw)
        except Exception as error:  # the library raises Exception itself
            raise ConversionError(f"{self.path.name} has no {file.name} that can be read: {error}") from error
        kind = json.loads(raw)["model"].get("type")
        if kind != "BPE" or "ByteLevel" not in str(tokenizer.decoder):
            raise ConversionError(f"{self.path.name} has the tokenizer {kind}; known is BPE of bytes")
        return tokenizer

    def _special(self, name: str) -> int | None:
        """bos_token and the like: a text, or what AddedToken was."""
        said = self._talk.get(name)
        text = said.get("content") if isinstance(said, dict) else said
        return None if text is None else self._tokenizer.token_to_id(text)

    def _document(self, name: str, *, needed: bool = False) -> Mapping[str, Any]:
        try:
            return dict(json.loads((self.path / name).read_bytes()))
        except FileNotFoundError:
            if not needed:
                return {}
            raise ConversionError(f"{self.path.name} has no {name}: it is no model folder") from None
        except (OSError, ValueError, TypeError) as error:
            raise ConversionError(f"{self.path.name}: {name} can't be read: {error}") from error

    def _name(self, tensor: str) -> str:
        """blk.3.attn_q.bias -> model.layers.3.self_attn.q_proj.bias"""
        *layer, name, part = tensor.split(".")
        theirs = _NAMES.get(name, name)
        return f"model.layers.{layer[1]}.{theirs}.{part}" if layer else f"{theirs}.{part}"

    def _tensor(self, tensor: str) -> Tensor:
        name = self._name(tensor)
        if name not in self._tensors:
            raise ConversionError(f"{self.path.name} has no tensor {name}")
        return self._tensors[name]
