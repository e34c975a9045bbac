"""Folders of sentence-transformers and Hugging Face: what `models add` makes of them, and models that read a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.adding import add
from core.errors import ConversionError, GoldenMismatchError, ManifestError, ModelError
from models.adding import Wishes
from models.convert.export import classifier, embedder
from models.device import Device
from models.folder import ModelFolder, hashes
from models.golden import matrices
from models.inference import InferenceThread
from models.manifest import Manifest
from models.proving import loaded
from models.runtime import Runtime
from models.scores import Scores
from models.store import ModelStore
from tests import checkpoint
from tests.unit.knowledge.bert import WORDS, sentence_folder

POSITIONS = 32
TEXTS = ["the cat sleeps at night.", "a dog barks", "", "?", "\0🐈", "the cat and a dog " * 40]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "transformers", "sentence_transformers", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)


def reads(folder: Path, tokens: int = POSITIONS, **changes: Any) -> ModelFolder:
    """A text classifier: softmax of the mean of its tokens' vectors, each with that of its position."""
    path = folder / "reads" / "1"
    path.mkdir(parents=True)
    chance = np.random.default_rng(3)
    weights = {"words": chance.normal(0, 2, (len(WORDS), 3)), "places": chance.normal(0, 1, (POSITIONS, 3))}
    constants = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()]
    for name, value in (("zero", 0), ("one", 1), ("axis", [1]), ("wide", [2])):
        constants.append(numpy_helper.from_array(np.array(value, np.int64), name))
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["told"]),
        helper.make_node("Shape", ["input_ids"], ["size"], start=1, end=2),
        helper.make_node("Squeeze", ["size"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["at"]),
        helper.make_node("Gather", ["places", "at"], ["placed"]),
        helper.make_node("Add", ["told", "placed"], ["both"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "wide"], ["masked"]),
        helper.make_node("Mul", ["both", "masked"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "axis"], ["tokens"]),
        helper.make_node("Div", ["sum", "tokens"], ["mean"]),
        helper.make_node("Softmax", ["mean"], ["probabilities"], axis=-1),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "reads", inputs, [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path / "model.onnx")
    source = sentence_folder(folder / "words")
    (path / "tokenizer.json").write_text((source / "tokenizer.json").read_text())
    manifest = {
        "name": "reads",
        "version": "1",
        "labels": ["asks", "tells", "jokes"],
        "inputs": {"text": {"dtype": "string", "fields": ["text"]}},
        "reading": {"tokens": tokens},
        "outputs": {"probabilities": "probabilities"},
        "files": hashes(path),
    }
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    return ModelFolder.open(path, "reads", "1")


def scored(folder: ModelFolder, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    with loaded(folder) as runtime:
        rows = matrices(folder.manifest, [{"text": text} for text in texts])
        return np.asarray(Scores.of(folder.manifest, runtime.compute(rows)).matrix)


def test_a_text_is_read_by_its_tokens_and_its_answer_depends_on_no_neighbour(tmp_path: Path) -> None:
    folder = reads(tmp_path)
    alone = np.concatenate([scored(folder, [text]) for text in TEXTS])
    assert alone.shape == (len(TEXTS), 3)
    assert np.abs(scored(folder, TEXTS * 4) - np.tile(alone, (4, 1))).max() < 1e-6
    assert len({tuple(row.round(4)) for row in alone}) == len(TEXTS)


def test_another_answer_than_its_golden_one_is_refused(tmp_path: Path) -> None:
    golden = [{"inputs": {"text": "a dog barks"}, "expected": {"asks": 0.999}}]
    with pytest.raises(GoldenMismatchError, match="asks"), loaded(reads(tmp_path, golden=golden)):
        pass


def test_a_text_longer_than_the_graph_has_positions_is_found_before_it_comes(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"a text of 33 tokens fails"):
        Runtime(reads(tmp_path, tokens=33), Device.of("cpu"), InferenceThread())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": {"text": {"fields": ["text"]}}}, "reading belongs to"),
        ({"inputs": {"text": {"dtype": "string", "fields": ["a", "b"]}}}, "reading belongs to"),
        ({"reading": {"tokens": 0}}, "tokens"),
        ({"files": {"model.onnx": "0" * 64}}, "tokenizer.json"),
        ({"precisions": {"fp16": {"file": "tokenizer.json"}}}, "no precisions"),
        ({"kind": "embedder", "embedding": {"size": 3}}, "reading belongs to"),
    ],
)
def test_a_manifest_whose_reading_does_not_fit_says_so(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    told = json.loads(reads(tmp_path).manifest.model_dump_json(exclude_none=True)) | change
    with pytest.raises(ManifestError, match=words):
        Manifest.parse(json.dumps(told), "here")


def test_a_sentence_transformers_folder_is_added_without_torch(
    store: ModelStore, tmp_path: Path, without_torch: None
) -> None:
    source = sentence_folder(tmp_path / "small")
    prompts = {"prompts": {"query": "query : ", "document": "passage : "}}
    (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    said = "\n".join(add(store, source, Wishes()).lines)
    assert "before a question  'query : '" in said
    folder = store.fetch("small", "1")
    assert folder.manifest.embedding is not None
    assert folder.manifest.embedding.passage == "passage : "
    assert add(store, folder.path, Wishes()).document["published"], "a finished folder is loaded too"


def test_a_language_models_folder_is_added(store: ModelStore, tmp_path: Path) -> None:
    source = checkpoint.write(checkpoint.FORMS["llama"], tmp_path / "tiny")
    report = add(store, source, Wishes(name="talks"), dry_run=True)
    assert report.document["manifest"]["language"]["weights"] == "fp32"
    assert "256 tokens" in "\n".join(report.lines)
    with pytest.raises(ModelError, match="--labels says nothing of a language model"):
        add(store, source, Wishes(labels=["a", "b"]))


@pytest.mark.parametrize("kind", ["sentence", "classifier"])
def test_what_needs_torch_says_how_to_get_it(kind: str, store: ModelStore, tmp_path: Path, without_torch: None) -> None:
    source = sentence_folder(
        tmp_path / "source", model_type="roberta", architectures=["RobertaForSequenceClassification"]
    )
    if kind == "classifier":
        (source / "modules.json").unlink()
    with pytest.raises(ConversionError, match=r"extra export \(pip install -e '.\[export\]'\)"):
        add(store, source, Wishes())
    assert store.versions("source") == []


def test_modules_and_tasks_that_are_not_known_are_named(tmp_path: Path) -> None:
    source = sentence_folder(tmp_path / "source", architectures=["BertForMaskedLM"])
    modules = json.loads((source / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.models.LSTM"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConversionError, match=r"the module sentence_transformers.models.LSTM; known are"):
        embedder(source, tmp_path / "store", name="a", version="1")
    modules[1]["type"] = "os.system"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConversionError, match=r"os\.system"):
        embedder(source, tmp_path / "store", name="a", version="1")
    (source / "modules.json").unlink()
    with pytest.raises(ModelError, match=r"is BertForMaskedLM: known are"):
        add(ModelStore(str(tmp_path / "store")), source, Wishes())
    with pytest.raises(ConversionError, match="no text classifier"):
        classifier(source, tmp_path / "store", name="a", version="1")
    several = {"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification"}
    (source / "config.json").write_text(json.dumps(several))
    with pytest.raises(ConversionError, match="several labels at once"):
        classifier(source, tmp_path / "store", name="a", version="1")
