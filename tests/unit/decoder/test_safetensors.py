"""Folders with safetensors become decoders that say what transformers says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import ConversionError
from models.convert.gguf import convert
from models.decoder.network import Network, Slab
from models.decoder.proving import greedy, prefill
from models.device import Device
from models.folder import ModelFolder
from models.language import Language
from tests.checkpoint import FORMS, TOKENS, write

PEER = json.loads((Path(__file__).parents[2] / "golden/transformers_tiny.json").read_text())["forms"]
"""Made by scripts/parity.py, which wrote the same folders."""


def made(form: str, folder: Path, **config: Any) -> ModelFolder:
    source = write(FORMS[form], folder / "source", **config)
    return convert(source, folder / "store", name="tiny", version="1")


def language(folder: ModelFolder) -> Language:
    assert folder.manifest.language is not None
    return folder.manifest.language


@pytest.mark.parametrize("form", FORMS)
def test_logits_and_greedy_tokens_are_those_of_transformers(form: str, tmp_path: Path) -> None:
    slab = Slab(Network(made(form, tmp_path), Device.of("cpu"), 1), 1, 128)
    assert np.abs(prefill(slab, 0, TOKENS) - np.array(PEER[form]["logits"])).max() < 1e-4
    assert [int(logits.argmax()) for logits in greedy(slab, TOKENS, 24)] == PEER[form]["reply"]


def test_how_it_talks_is_taken_from_the_folder(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    told = language(folder)
    assert told.end_tokens == (257, 259)  # those of generation_config.json, config.json and tokenizer_config.json
    assert told.begin_token == 258
    assert (told.defaults.temperature, told.defaults.top_k, told.defaults.repetition_penalty) == (0.7, 50, 1.1)
    assert folder.manifest.licence == "cc0-1.0"
    assert "{{ m.content }}" in (folder.path / "chat_template.jinja").read_text()


def test_int4_is_rounded_from_floats(tmp_path: Path) -> None:
    source = write(FORMS["qwen2-tied"], tmp_path / "source")
    folder = convert(source, tmp_path, name="tiny", version="1", weights="int4", accuracy=1)
    got = prefill(Slab(Network(folder, Device.of("cpu"), 1), 1, 128), 0, TOKENS)
    assert np.corrcoef(got, PEER["qwen2-tied"]["logits"])[0, 1] > 0.9
    assert language(folder).weights == "int4"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gemma3_text"}, "gemma3_text"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "0.5 of each head"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "full_attention and sliding_attention"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.input_layernorm\.weight"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"head_dim": 8}, "heads of 8"),
    ],
)
def test_what_can_not_be_converted_is_named_and_leaves_nothing(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match=said):
        made("llama", tmp_path, **config)
    assert not list(tmp_path.glob("store/*/*"))


@pytest.mark.parametrize(
    ("file", "raw", "said"),
    [
        ("config.json", b"", "config.json can't be read"),
        ("model.safetensors", b"\x05", "isn't a safetensors file"),
        ("model.safetensors", (1 << 40).to_bytes(8, "little"), "its header has"),
        ("model.safetensors", None, "No such file"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
        ("tokenizer_config.json", b"{}", "no chat template"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../../etc/passwd"}}', "leaves the folder"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "model.safetensors"}}',
            "which model.safetensors doesn't",
        ),
    ],
)
def test_a_folder_with_a_broken_file_is_refused_by_the_files_name(
    file: str, raw: bytes | None, said: str, tmp_path: Path
) -> None:
    source = write(FORMS["llama"], tmp_path / "source")
    (source / file).unlink() if raw is None else (source / file).write_bytes(raw)
    with pytest.raises(ConversionError, match=said):
        convert(source, tmp_path / "store", name="tiny", version="1")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    source = write(FORMS["llama"], tmp_path / "source")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ConversionError, match="is said to be at"):
        convert(source, tmp_path / "store", name="tiny", version="1")
