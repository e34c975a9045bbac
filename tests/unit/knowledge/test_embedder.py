"""Texts to vectors: the converted graph against a forward pass in plain numpy, and what must not go live."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.errors import ConversionError, GoldenMismatchError, ManifestError, NoModelError, UnknownModelError, UsageError
from core.events import Deployment
from models.device import Device
from models.embedder import Embedder
from models.embedder.bert import Bert
from models.embedder.convert import convert, read
from models.embedder.feed import BATCH, buckets
from models.folder import ModelFolder, hashes
from models.inference import InferenceThread
from models.live import LiveModels
from models.manifest import Manifest
from models.store import ModelStore
from tests.unit.knowledge.bert import sentence_folder

CPU = Device.of("cpu")
TEXTS = [
    "the cat sleeps at night.",
    "a dog barks",
    "?",
    "",
    "\0\u202e🐈 \n",
    "x" * 9999,
    "the " * 9 + "cat and a dog",
]


def made(folder: Path, pooling: str = "mean_tokens", **options: str) -> tuple[Path, ModelFolder]:
    source = sentence_folder(folder / "source", pooling)
    return source, convert(source, folder / "store", name="small", version="1", **options)


def reference(source: Path, texts: list[str], pooling: str) -> NDArray[np.float64]:
    """By models/embedder/bert.py, one text at a time, without padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(32)
    found = read(source)
    bert = Bert(found.config, found.weights)
    states = [bert.hidden(tokenizer.encode(text).ids) for text in texts]
    vectors: NDArray[np.float64] = np.stack(
        [one.mean(axis=0) if pooling == "mean_tokens" else one[0] for one in states]
    )
    lengths: NDArray[np.float64] = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
def test_a_converted_embedder_computes_what_the_paper_says(tmp_path: Path, pooling: str) -> None:
    source, folder = made(tmp_path, pooling)
    embedder = Embedder(folder, CPU, InferenceThread())
    assert np.abs(embedder.vectors(TEXTS) - reference(source, TEXTS, pooling)).max() < 1e-5


def test_a_vector_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    _, folder = made(tmp_path)
    embedder = Embedder(folder, CPU, InferenceThread())
    alone = np.concatenate([embedder.vectors([text]) for text in TEXTS])
    assert np.abs(embedder.vectors(TEXTS * 5) - np.tile(alone, (5, 1))).max() < 1e-5
    assert embedder.vectors([]).shape == (0, 24)


async def test_questions_and_passages_have_the_prefixes_that_the_model_was_trained_with(tmp_path: Path) -> None:
    _, folder = made(tmp_path, question="query: ", passage="passage: ")
    embedder = await asyncio.to_thread(Embedder, folder, CPU, InferenceThread())
    assert np.allclose(await embedder.question("cats"), embedder.vectors(["query: cats"])[0], atol=1e-6)
    assert np.allclose(
        await embedder.passages(["cats", "dog"]), embedder.vectors(["passage: cats", "passage: dog"]), atol=1e-6
    )
    embedder.close()
    with pytest.raises(UsageError, match="is closed"):
        await embedder.question("cats")


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 256), max_size=60))
def test_every_text_is_computed_once_and_with_others_of_its_length(lengths: list[int]) -> None:
    runs = list(buckets(lengths))
    assert sorted(row for run in runs for row in run) == list(range(len(lengths)))
    for run in runs:
        assert len(run) <= BATCH
        assert max(lengths[row] for row in run) <= 1.3 * max(8, *(lengths[row] for row in run)) or len(run) == 1
        assert max(lengths[row] for row in run) <= 1.3 * max(8, min(lengths[row] for row in run))


def test_another_model_than_the_manifest_proves_never_goes_live(tmp_path: Path) -> None:
    _, folder = made(tmp_path)
    manifest = json.loads((folder.path / "manifest.json").read_text())
    manifest["embedding"]["golden"][0]["vector"][3] += 0.01
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(GoldenMismatchError, match=r"golden\[0\] differs by 0.01"):
        Embedder(ModelFolder.open(folder.path, "small", "1"), CPU, InferenceThread())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 23}, r"golden\[0\].vector has 24 components, size is 23"),
        ({"size": 23, "golden": []}, "has shape"),
        ({"output": "logits"}, "no output 'logits'"),
        ({"pooling": "max"}, "pooling"),
        ({"tokens": 0}, "tokens"),
    ],
)
def test_a_manifest_that_contradicts_the_graph_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    _, folder = made(tmp_path)
    manifest = json.loads((folder.path / "manifest.json").read_text())
    manifest["embedding"] |= change
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=words):
        Embedder(ModelFolder.open(folder.path, "small", "1"), CPU, InferenceThread())


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    _, folder = made(tmp_path)
    (folder.path / "tokenizer.json").write_text("{}")
    changed = folder.manifest.model_copy(update={"files": hashes(folder.path)})
    changed.write(folder.path)
    with pytest.raises(ManifestError, match="no tokenizer"):
        Embedder(ModelFolder.open(folder.path, "small", "1"), CPU, InferenceThread())


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"kind": "classifier", "labels": ["a", "b"]}, "embedding to an embedder"),
        ({"embedding": None}, "needs embedding"),
        ({"labels": ["a", "b"]}, "neither inputs"),
        ({"files": {"model.onnx": "0" * 64}}, "tokenizer.json"),
    ],
)
def test_a_manifest_that_is_neither_one_thing_nor_the_other_says_so(
    tmp_path: Path, part: dict[str, object], words: str
) -> None:
    _, folder = made(tmp_path)
    told = json.loads(folder.manifest.model_dump_json(exclude_none=True)) | part
    with pytest.raises(ManifestError, match=words):
        Manifest.parse(json.dumps(told), "here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "roberta"}, "roberta"),
        ({"hidden_act": "relu"}, "relu"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"num_hidden_layers": 3}, "have no encoder.layer.2"),
    ],
)
def test_what_can_not_be_converted_is_named_and_leaves_nothing(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    source = sentence_folder(tmp_path / "source", **change)  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match=words):
        convert(source, tmp_path / "store", name="small", version="1")
    assert not list(tmp_path.glob("store/*/*"))


def test_a_folder_of_something_else_and_a_version_that_exists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="no sentence-transformers folder"):
        convert(tmp_path, tmp_path / "store", name="small", version="1")
    with pytest.raises(ConversionError, match="pools by"):
        convert(sentence_folder(tmp_path / "max", "max_tokens"), tmp_path / "store", name="small", version="1")
    source, _ = made(tmp_path)
    with pytest.raises(ConversionError, match="a version never changes"):
        convert(source, tmp_path / "store", name="small", version="1")


async def test_an_embedder_is_deployed_like_any_model_and_answers_no_observation(tmp_path: Path) -> None:
    made(tmp_path)
    live = LiveModels(ModelStore(str(tmp_path / "store")), CPU, InferenceThread())
    assert live.embedder() is None
    await live.converge(Deployment(model="small", revision=1, active="1", since=0))
    embedder = live.embedder()
    assert embedder is not None
    assert live.embedder("other") is None
    with pytest.raises(NoModelError):
        live.resolve(None)  # an event that names no model waits for one that scores
    with pytest.raises(UnknownModelError, match="'small' is not deployed"):
        live.resolve("small")
    with live.embedding() as held:
        assert held is embedder
        await live.converge(Deployment(model="small", revision=2, active=None, since=0))
        assert (await embedder.question("cat")).shape == (24,)
    with pytest.raises(UsageError):
        embedder.vectors(["cat"])
    live.close()
