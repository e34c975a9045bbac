"""Adapters as PEFT keeps them become folders that a store takes, for one version of a language model; without torch.

PEFT's layout: adapter_config.json, and adapter_model.safetensors with base_model.model.model.layers.{n}.{module}.{part}
for lora_A.weight (rank, in) and lora_B.weight (out, rank). The change is B A alpha / rank, or, rank-stabilised
(Kalajdzievski 2023), B A alpha / sqrt(rank).
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError, ManifestError
from models.decoder.adapter import Adapter
from models.decoder.network import Network
from models.device import Device
from models.engine import Array
from models.folder import ModelFolder, hashes
from models.language import AdapterOf, Language
from models.manifest import MODEL, Kind, Manifest

Floats = NDArray[np.float32]

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MODULES: Final = {
    "self_attn.q_proj": ("qkv", 0),
    "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2),
    "self_attn.o_proj": ("out", 0),
    "mlp.gate_proj": ("gate_up", 0),
    "mlp.up_proj": ("gate_up", 1),
    "mlp.down_proj": ("down", 0),
}
"""A module -> the linear layer of our graphs that it is in, and which of its parts."""
_KEY: Final = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(.+))\.lora_(A|B)\.weight")
_UNKNOWN: Final = (
    "use_dora",
    "fan_in_fan_out",
    "modules_to_save",
    "use_qalora",
    "lora_bias",
    "trainable_token_indices",
)
"""Settings that change what is computed, in ways that our graphs don't know."""


def convert(path: Path, base: ModelFolder, out: Path, *, name: str, version: str) -> ModelFolder:
    """Makes the folder out/NAME/VERSION of a folder as PEFT's save_pretrained writes it.

    base: the version that it will change; one converted with adapters=True. Raises ConversionError for what isn't
    plain LoRA of linear layers, for sizes that aren't the base's, and where the folder is there already.
    """
    target = out / name / version
    if target.exists():
        raise ConversionError(f"{target} is there already; a version never changes")
    language = base.manifest.language
    if language is None or not language.adapters:
        raise ConversionError(f"{base.identity} takes no adapters: it must be a language model converted with them")
    places = Network(base, Device.of("cpu"), 1).places
    matrices = _joined(_layers(path, _config(path)), places, language, path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{version}."))
    try:
        _write_graph(matrices, part / MODEL)
        rank = max(array.shape[2] for key, array in matrices.items() if key.endswith(".a"))
        Manifest(
            name=name,
            version=version,
            kind=Kind.ADAPTER,
            files=hashes(part),
            adapter=AdapterOf(base=base.sha256, model=base.identity, rank=rank),
            made_by=f"{path.name}, for {base.identity}",
        ).write(part)
        Adapter(ModelFolder.open(part, name, version)).check(places)
        part.chmod(0o755)
        part.rename(target)
        return ModelFolder.open(target, name, version)
    except ManifestError as error:
        raise ConversionError(f"{path.name} can't be converted: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConversionError(f"{path.name}/{CONFIG} can't be read: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ConversionError(f"{path.name}/{CONFIG} is of {config.get('peft_type') if config else None}, not LORA")
    odd = [name for name in _UNKNOWN if config.get(name)] + ["bias"] * (config.get("bias", "none") != "none")
    if odd:
        raise ConversionError(f"{path.name} is made with {', '.join(odd)}, which isn't known here")
    return config


def _layers(path: Path, config: Mapping[str, Any]) -> dict[tuple[int, str], tuple[Floats, Floats]]:
    """(layer, module) -> A (rank, in), and B (out, rank) with the scale in it."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise ConversionError(f"{path.name} needs the extra convert (safetensors is missing)") from None
    try:
        tensors: dict[str, Array] = load_file(path / WEIGHTS)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConversionError(f"{path.name}/{WEIGHTS} can't be read: {error}") from error
    pairs: dict[tuple[int, str, str], dict[str, Floats]] = defaultdict(dict)
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None or found[3] not in MODULES or tensor.ndim != 2:
            raise ConversionError(f"{path.name} changes {key}; only linear layers of blocks can be changed")
        pairs[int(found[2]), found[3], found[1]][found[4]] = tensor.astype(np.float32)
    layers = {}
    for (layer, module, full), pair in pairs.items():
        if pair.keys() != {"A", "B"} or len(pair["A"]) != pair["B"].shape[1]:
            raise ConversionError(f"{path.name} has no pair of matrices for {full}")
        layers[layer, module] = pair["A"], (pair["B"] * _scale(config, full, len(pair["A"]))).astype(np.float32)
    if not layers:
        raise ConversionError(f"{path.name} changes nothing")
    return layers


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """alpha_pattern names modules by the end of their name, or by a pattern of it."""
    alpha = config.get("lora_alpha", rank)
    for pattern, other in (config.get("alpha_pattern") or {}).items():
        if module == pattern or module.endswith(f".{pattern}") or re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = other
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _joined(
    layers: Mapping[tuple[int, str], tuple[Floats, Floats]],
    places: Mapping[str, tuple[int, int]],
    language: Language,
    who: str,
) -> dict[str, Floats]:
    """Modules that are one layer in our graphs: a side by side (1, in, sum of ranks), b with each module's in its own
    columns (1, sum of ranks, out)."""
    parts: dict[str, list[tuple[int, Floats, Floats]]] = defaultdict(list)
    for (layer, module), (a, b) in sorted(layers.items()):
        of, number = MODULES[module]
        parts[f"lora.{layer}.{of}"].append((number, a, b))
    joined = {}
    for place, found in parts.items():
        if place not in places:
            raise ConversionError(f"{who} changes layer {place.split('.')[1]}; the model has {language.layers}")
        into, out = places[place]
        sizes = _sizes(place.rpartition(".")[2], out, language)
        wide, columns = [], []
        for number, a, b in sorted(found, key=lambda one: one[0]):
            if a.shape[1] != into or len(b) != sizes[number]:
                raise ConversionError(
                    f"{who} has {a.shape[1]} to {len(b)} at {place}, the model {into} to {sizes[number]}"
                )
            whole = np.zeros((b.shape[1], out), np.float32)
            begin = sum(sizes[:number])
            whole[:, begin : begin + sizes[number]] = b.T
            wide.append(a.T)
            columns.append(whole)
        joined[f"{place}.a"], joined[f"{place}.b"] = np.hstack(wide)[None], np.vstack(columns)[None]
    return joined


def _sizes(of: str, out: int, language: Language) -> list[int]:
    """What of a layer's outputs belongs to which of its modules."""
    if of == "qkv":
        return [language.heads * language.head_dim, *[language.kv_heads * language.head_dim] * 2]
    return [out // 2] * 2 if of == "gate_up" else [out]


def _write_graph(matrices: Mapping[str, Floats], path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from models.convert.gguf.graph import IR, OPSETS

    constants = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in matrices.items()]
    outputs = [helper.make_tensor_value_info(one.name, TensorProto.FLOAT, list(one.dims)) for one in constants]
    graph = helper.make_graph([], "adapter", [], outputs, constants)
    opsets = [helper.make_opsetid("", OPSETS[""])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="homunculus"), str(path))
