"""GGUF files of every form become folders that compute the same as the textbook and as llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from core.errors import ConversionError, GoldenMismatchError, ManifestError, TamperedError
from models.convert.gguf import convert
from models.decoder import Decoder
from models.decoder.network import Network, Slab
from models.decoder.proving import prefill
from models.device import Device
from models.folder import ModelFolder
from models.language import Language
from models.manifest import Kind, Manifest
from tests.gguf import FORMS, Form, Tiny

CPU = Device.of("cpu")
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 60, 40)]
PEER = json.loads((Path(__file__).parents[2] / "golden/llama_cpp_tiny.json").read_text())["logits"]


def made(form: Form, folder: Path, **options: Any) -> ModelFolder:
    return convert(Tiny(form).write(folder / "tiny.gguf"), folder, name="tiny", version="1", **options)


def logits_of(folder: ModelFolder) -> np.ndarray[Any, np.dtype[np.float32]]:
    return prefill(Slab(Network(folder, CPU, 1), 1, 128), 0, TOKENS)


def language(folder: ModelFolder) -> Language:
    assert folder.manifest.language is not None
    return folder.manifest.language


@pytest.mark.parametrize("name", FORMS)
def test_every_form_computes_what_the_textbook_says(name: str, tmp_path: Path) -> None:
    folder = made(FORMS[name], tmp_path)
    textbook = Tiny(FORMS[name]).logits(TOKENS)
    assert np.abs(logits_of(folder) - textbook).max() < 2e-4
    assert folder.manifest.kind is Kind.DECODER
    assert folder.manifest.licence == "cc0-1.0"
    assert language(folder).golden
    if FORMS[name].kind in {"F32", "F16"} and name in PEER:
        assert np.abs(textbook[:8] - PEER[name]).max() < 1e-2, "llama.cpp, whose KV is fp16"


@pytest.mark.parametrize("name", ["llama", "smollm2", "qwen2-q4_0", "q8_0"])
def test_int4_takes_the_files_own_blocks_and_rounds_others(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    folder = made(form, tmp_path, weights="int4", accuracy=1)
    got, textbook = logits_of(folder), Tiny(form).logits(TOKENS)
    if form.kind == "F32":
        assert np.corrcoef(got, textbook)[0, 1] > 0.9
    else:
        assert np.abs(got - textbook).max() < 1e-3
    assert language(folder).weights == "int4"


@pytest.mark.parametrize("accuracy", [1, 4])
def test_int4_with_bytes_for_inputs_is_near(tmp_path: Path, accuracy: Literal[1, 4]) -> None:
    got = logits_of(made(FORMS["smollm2"], tmp_path, weights="int4", accuracy=accuracy))
    assert np.corrcoef(got, Tiny(FORMS["smollm2"]).logits(TOKENS))[0, 1] > 0.99


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Form(family="gemma"), "gemma"),
        (Form(pre="tekken"), "tekken"),
        (Form(template=None), "chat template"),
        (Form(template="{% if %}"), "can't be converted"),
        (Form(linear=2.0, scaling="yarn"), "yarn"),
        (Form(heads=16, kv_heads=4), "heads"),
    ],
)
def test_what_cannot_be_converted_says_why_and_leaves_nothing(form: Form, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=said):
        made(form, tmp_path)
    assert list((tmp_path / "tiny").glob("*") if (tmp_path / "tiny").exists() else []) == []


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"no model at all" * 99])
def test_files_that_are_none_are_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises(ConversionError, match=r"x\.gguf"):
        convert(tmp_path / "x.gguf", tmp_path, name="x", version="1")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = Tiny(FORMS["llama"]).write(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ConversionError, match=r"x\.gguf"):
        convert(path, tmp_path, name="x", version="1")


def test_a_version_is_never_made_twice(tmp_path: Path) -> None:
    made(FORMS["llama"], tmp_path)
    with pytest.raises(ConversionError, match="never changes"):
        made(FORMS["llama"], tmp_path)


def test_a_decoder_that_does_not_reply_as_its_manifest_says_never_answers(tmp_path: Path) -> None:
    folder = made(FORMS["llama"], tmp_path)
    golden = language(folder).golden[0]
    wrong = golden.model_copy(update={"reply": (*golden.reply[:-1], golden.reply[-1] ^ 1)})
    changed = language(folder).model_copy(update={"golden": (wrong,)})
    rewritten(folder, language=changed)
    with pytest.raises(GoldenMismatchError, match=rf"golden\[0\]\.reply\[{len(golden.reply) - 1}\]"):
        Decoder(ModelFolder.open(folder.path, "tiny", "1"), CPU)


def test_a_manifest_that_contradicts_its_graph_is_refused(tmp_path: Path) -> None:
    folder = made(FORMS["llama"], tmp_path)
    rewritten(folder, language=language(folder).model_copy(update={"kv_heads": 4, "golden": ()}))
    with pytest.raises(ManifestError, match="past_key_values"):
        Decoder(ModelFolder.open(folder.path, "tiny", "1"), CPU)


def test_a_changed_tokenizer_is_noticed(tmp_path: Path) -> None:
    folder = made(FORMS["llama"], tmp_path)
    path = folder.path / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(TamperedError, match=r"tokenizer\.json"):
        ModelFolder.open(folder.path, "tiny", "1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"language": None}, "needs language"),
        ({"labels": ["a", "b"]}, "labels"),
        ({"kind": "classifier"}, "language belongs to a decoder"),
        ({"files": {"model.onnx": "0" * 64}}, "tokenizer"),
    ],
)
def test_a_decoders_manifest_has_what_a_decoder_needs(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = made(FORMS["llama"], tmp_path)
    text = json.dumps(json.loads(folder.manifest.model_dump_json(exclude_none=True)) | change)
    with pytest.raises(ManifestError, match=said):
        Manifest.parse(text, "tiny@1")


def rewritten(folder: ModelFolder, **fields: Any) -> None:
    """Another manifest in the folder."""
    folder.manifest.model_copy(update=fields).write(folder.path)
