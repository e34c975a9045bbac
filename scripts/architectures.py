"""Exports small models of many architectures, with random weights, and says how far each graph is from torch.

python scripts/architectures.py [NAME...]    prints a line for each; ends with 1 where one couldn't be exported

By hand, where the extra `export` is installed. Each export proves itself: a graph that computes something else than
torch is an error.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from core.errors import ConversionError  # noqa: E402  its own folder comes first on the path, as in app.py
from models.convert.export import classifier, embedder, reranker  # noqa: E402
from models.folder import ModelFolder  # noqa: E402

SEQUENCES: Final = "AutoModelForSequenceClassification"
SIZES: Final = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
DISTILBERT: Final = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 66}
DEBERTA: Final = {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
T5: Final = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
QWEN3: Final = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
ENCODERS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "bert": ("BertConfig", SIZES, ("mean", "Normalize")),
    "mpnet": ("MPNetConfig", SIZES, ("mean", "Normalize")),
    "roberta": ("RobertaConfig", SIZES, ("cls",)),
    "xlm-roberta": ("XLMRobertaConfig", SIZES, ("max", "Normalize")),
    "distilbert": ("DistilBertConfig", DISTILBERT, ("mean", "Dense", "Normalize")),
    "electra": ("ElectraConfig", {**SIZES, "embedding_size": 32}, ("mean_sqrt_len_tokens",)),
    "deberta-v2": ("DebertaV2Config", DEBERTA, ("weightedmean", "Normalize")),
    "modernbert": ("ModernBertConfig", {**SIZES, "local_attention": 8, "pad_token_id": 0}, ("cls", "Normalize")),
    "t5": ("T5Config", T5, ("mean", "Dense", "Normalize")),
    "qwen3": ("Qwen3Config", QWEN3, ("lasttoken", "Normalize")),
}
"""Name -> its configuration, what differs from transformers' defaults, and how it pools and goes on."""
CLASSIFIERS: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "bert": ("BertConfig", SIZES, 2),
    "roberta": ("RobertaConfig", SIZES, 3),
    "distilbert": ("DistilBertConfig", DISTILBERT, 5),
    "deberta-v2": ("DebertaV2Config", DEBERTA, 3),
    "mpnet": ("MPNetConfig", SIZES, 1),
}
"""Name -> configuration, what differs, and how many labels; one: a regressor."""
RERANKERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bert": ("BertConfig", SIZES),
    "roberta": ("RobertaConfig", SIZES),
    "xlm-roberta": ("XLMRobertaConfig", SIZES),
    "distilbert": ("DistilBertConfig", DISTILBERT),
    "deberta-v2": ("DebertaV2Config", DEBERTA),
}
"""Name -> configuration, what differs."""


def main(wanted: list[str]) -> int:
    """How many couldn't be exported."""
    print(", ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "sentence-transformers")))
    failed = 0
    for what, known, source, export in (
        ("embedder", ENCODERS, _sentence_folder, embedder),
        ("classifier", CLASSIFIERS, _text_classifier, classifier),
        ("reranker", RERANKERS, _cross_encoder, reranker),
    ):
        for name in known:
            if not wanted or name in wanted:
                failed += not _tried(what, name, source, export)
    return failed


def _tried(what: str, name: str, source: Callable[[str, Path], Path], export: Callable[..., ModelFolder]) -> bool:
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = export(source(name, Path(folder) / name), Path(folder) / "store", name=name, version="1")
        except ConversionError as error:
            print(f"{what} {name}: NOT exported: {error}", flush=True)
            return False
        size = (made.path / "model.onnx").stat().st_size
    print(f"{what} {name}: exported, {size / 1e3:,.0f} kB, {time.process_time() - began:.1f} s of CPU", flush=True)
    return True


def _sentence_folder(name: str, folder: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    kind, options, (pooling, *steps) = ENCODERS[name]
    plain = _saved(kind, options, folder.with_name(f"{name}-plain"), "AutoModel")
    modules: list[Any] = [Transformer(str(plain), max_seq_length=60)]
    modules.append(Pooling(32, pooling_mode=pooling))
    if "Dense" in steps:
        modules.append(Dense(32, 16))
    if "Normalize" in steps:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu", prompts={"query": "query: ", "document": ""}).save(str(folder))
    return folder


def _text_classifier(name: str, folder: Path) -> Path:
    kind, options, labels = CLASSIFIERS[name]
    return _saved(kind, {**options, "num_labels": labels}, folder, SEQUENCES)


def _cross_encoder(name: str, folder: Path) -> Path:
    from sentence_transformers import CrossEncoder

    kind, options = RERANKERS[name]
    plain = _saved(kind, {**options, "num_labels": 1}, folder.with_name(f"{name}-plain"), SEQUENCES)
    CrossEncoder(str(plain), device="cpu").save_pretrained(str(folder))
    return folder


def _saved(kind: str, options: dict[str, Any], folder: Path, auto: str) -> Path:
    import torch
    import transformers

    torch.manual_seed(3)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=60
    )
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    config = getattr(transformers, kind)(**{**tokens, **options})
    model = getattr(transformers, auto).from_config(config)
    with torch.no_grad():
        for each in model.parameters():  # as they begin all texts are nearly the same
            each.add_(torch.randn_like(each) * 0.1)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def _tokenizer() -> Any:
    """Bytes, and what stands around a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["[PAD]", "[CLS]", "[SEP]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    return made


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
