"""A question and passages to scores: what of them is read, what must not go live, and how a version is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import GoldenMismatchError, ManifestError, ModelError, RerankError, UnknownModelError, UsageError
from core.events import Deployment
from models.adding import Wishes
from models.convert.export.reranker import ranks
from models.device import Device
from models.folder import ModelFolder, hashes
from models.inference import InferenceThread
from models.live import LiveModels
from models.pretrained import maker_of
from models.reranker import Reranker
from models.store import ModelStore
from tests.unit import graphs
from tests.unit.knowledge.bert import sentence_folder
from tests.unit.knowledge.ranker import FAILS, NOT_FINITE, ranker

CPU = Device.of("cpu")
PASSAGES = ["a dog barks", "the cat sleeps at night.", "", "cat cat cat", "?", "\0🐈 \n", "a cat " * 999]


@pytest.fixture
def thread() -> InferenceThread:
    return InferenceThread()


def test_a_pair_is_read_as_question_and_passage_whoever_its_neighbours_are(
    tmp_path: Path, thread: InferenceThread
) -> None:
    reranker = Reranker(ranker(tmp_path / "store"), CPU, thread)
    assert reranker.pairs([("cat", one) for one in PASSAGES[:6]]).tolist() == [0, 1, 0, 3, 0, 0]
    assert reranker.pairs([("cat cat", "dog cat"), ("dog", "dog cat")]).tolist() == [2, 1], "nobody meets himself"
    pairs = [(question, passage) for question in ("the cat", "a dog ?", "") for passage in PASSAGES] * 3
    alone = np.concatenate([reranker.pairs([pair]) for pair in pairs])
    assert reranker.pairs(pairs).tolist() == alone.tolist()
    assert reranker.pairs([]).shape == (0,)


def test_a_long_passage_is_cut_and_a_question_never(tmp_path: Path, thread: InferenceThread) -> None:
    reranker = Reranker(ranker(tmp_path / "store", tokens=24), CPU, thread)
    question = "a a a a a a a a a a a a cat"  # 13 tokens, 3 special ones, so that 8 of the passage are left
    assert reranker.pairs([(question, "dog " * 7 + "cat")]).tolist() == [1]
    assert reranker.pairs([(question, "dog " * 8 + "cat")]).tolist() == [0]
    with pytest.raises(RerankError, match="a question of 14 tokens leaves no room for a passage: 13 are allowed"):
        reranker.pairs([("dog", "dog"), (f"a {question}", "cat")])


async def test_scores_come_in_the_order_of_the_passages(tmp_path: Path, thread: InferenceThread) -> None:
    reranker = Reranker(ranker(tmp_path / "store"), CPU, thread)
    passages = ["dog " * (n * 7 % 5) + "cat " * (n % 7) for n in range(30)]
    assert (await reranker.scores("cat", passages)).tolist() == [n % 7 for n in range(30)]
    assert (await reranker.scores("cat", [])).tolist() == []
    with pytest.raises(RerankError, match="ranks@1 gave a score that is not finite"):
        await reranker.scores("cat", ["cat", NOT_FINITE])
    with pytest.raises(Exception, match="indices element out of data bounds"):
        await reranker.scores("cat", ["cat", FAILS])
    reranker.close()
    with pytest.raises(UsageError, match="is closed"):
        await reranker.scores("cat", ["cat"])


def test_another_score_than_its_golden_one_is_refused(tmp_path: Path, thread: InferenceThread) -> None:
    golden = [{"question": "the cat", "passage": "a cat", "score": 0.9}]
    with pytest.raises(GoldenMismatchError, match=r"ranks@1: ranking.golden\[0\] is 1, 0.9 within 0.001 is expected"):
        Reranker(ranker(tmp_path / "store", ranking={"tokens": 24, "golden": golden}), CPU, thread)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranking": {"output": "logits"}}, "no output 'logits'"),
        ({"ranking": {"tokens": 15}}, "ranking.tokens"),
        ({"ranking": {"golden": [{"question": "", "passage": "", "score": 1}]}}, "ranking.golden.0.question"),
        ({"ranking": {"golden": [{"question": "a", "passage": "", "score": "NaN"}]}}, "ranking.golden.0.score"),
        ({"ranking": None}, "kind reranker needs ranking"),
        ({"embedding": {"size": 3}}, "nothing of another kind"),
        ({"kind": "classifier", "labels": ["a", "b"]}, "ranking to a reranker"),
        ({"labels": ["a", "b"]}, "neither inputs"),
        ({"files": {"model.onnx": "0" * 64}}, "tokenizer.json"),
    ],
)
def test_a_manifest_that_fits_neither_itself_nor_the_graph_is_refused(
    tmp_path: Path, thread: InferenceThread, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ManifestError, match=words):
        Reranker(ranker(tmp_path / "store", **change), CPU, thread)


def test_a_graph_that_is_no_reranker_and_a_tokenizer_that_is_none_are_refused(
    tmp_path: Path, thread: InferenceThread
) -> None:
    folder = ranker(tmp_path / "store")
    whole = (folder.path / "tokenizer.json").read_text()

    def changed(file: str, content: bytes) -> ModelFolder:
        (folder.path / file).write_bytes(content)
        folder.manifest.model_copy(update={"files": hashes(folder.path)}).write(folder.path)
        return ModelFolder.open(folder.path, "ranks", "1")

    with pytest.raises(ManifestError, match="no tokenizer"):
        Reranker(changed("tokenizer.json", b"{}"), CPU, thread)
    changed("tokenizer.json", whole.encode())
    with pytest.raises(ManifestError, match=r"the graph wants \['X'\]"):
        Reranker(changed("model.onnx", graphs.linear().SerializeToString()), CPU, thread)


async def test_a_reranker_is_deployed_and_swapped_like_any_model_and_answers_no_observation(tmp_path: Path) -> None:
    ranker(tmp_path / "store")
    ranker(tmp_path / "store", version="2", weight=-1.0)
    ranker(tmp_path / "store", version="3", ranking={"output": "logits"})
    live = LiveModels(ModelStore(str(tmp_path / "store")), CPU, InferenceThread())
    with live.reranking("ranks") as nobody, live.reranking(None) as unnamed:
        assert (nobody, unnamed) == (None, None)
    await live.converge(Deployment(model="ranks", revision=1, active="1", since=0))
    with pytest.raises(UnknownModelError, match="'ranks' is not deployed"):
        live.resolve("ranks")
    with live.reranking("ranks") as first:
        assert first is not None
        await live.converge(Deployment(model="ranks", revision=2, active="2", since=0))
        assert (await first.scores("cat", ["cat"])).tolist() == [1], "whoever began on it ends on it"
        with live.reranking("ranks") as second:
            assert second is not None
            assert (await second.scores("cat", ["cat"])).tolist() == [-1]
            assert first.identity != second.identity
    with pytest.raises(UsageError):
        first.pairs([("cat", "cat")])
    with pytest.raises(ManifestError, match="no output 'logits'"):
        await live.converge(Deployment(model="ranks", revision=3, active="3", since=0))
    with live.reranking("ranks") as still:
        assert still is second, "a version that fails leaves the one before"
    assert live.embedder("ranks") is None
    live.close()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}),
    ],
)
def test_a_cross_encoder_s_folder_is_known_by_what_it_says(tmp_path: Path, file: str, said: dict[str, Any]) -> None:
    source = sentence_folder(tmp_path / "source", architectures=["BertForSequenceClassification"])
    assert not ranks(source)
    there = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps(there | said))
    assert ranks(source)
    make = maker_of(source)
    assert make is not None
    assert make.__name__ == "_reranker"


def test_what_is_said_to_be_a_reranker_and_can_not_be_one_is_refused(tmp_path: Path) -> None:
    from cli.adding import add

    source = sentence_folder(tmp_path / "source", architectures=["BertForMaskedLM"])
    store = ModelStore(str(tmp_path / "store"))
    with pytest.raises(ModelError, match=r"names no architecture \.\.\.ForSequenceClassification"):
        add(store, source, Wishes(reranker=True))
    with pytest.raises(ModelError, match="--labels says nothing of a reranker"):
        add(store, source, Wishes(reranker=True, labels=["a"]))
    folder = ranker(tmp_path / "made")
    with pytest.raises(ModelError, match="which says all of it"):
        add(store, folder.path, Wishes(reranker=True))
    said = "\n".join(add(store, folder.path, Wishes()).lines)
    assert "tokens of a pair  24" in said
    assert "golden pairs      1" in said
