"""From a sentence-transformers folder of the BERT family to a version folder: safetensors to ONNX, without torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.convert.version import making
from models.embedder.bert import Bert
from models.embedder.embedder import pooled
from models.embedder.graph import graph_of
from models.embedder.tokens import Tokens
from models.embedding import TOKENIZER, Embedding, GoldenText
from models.folder import ModelFolder, hashes
from models.manifest import MODEL, Kind, Manifest

EXAMPLES: Final = (
    "The weather is lovely today.",
    "A partition has one owner; a hot session can't be split.",
    "a",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
)
"""Golden texts: their vectors are those of models/embedder/bert.py, which shares nothing with the graph."""
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"


class Source(NamedTuple):
    """What a sentence-transformers folder says."""

    config: Mapping[str, Any]
    weights: Mapping[str, NDArray[np.float32]]
    pooling: str
    normalised: bool
    tokens: int


def convert(
    source: Path,
    store: Path,
    *,
    name: str,
    version: str,
    question: str | None = None,
    passage: str | None = None,
    licence: str | None = None,
    examples: Sequence[str] = EXAMPLES,
) -> ModelFolder:
    """Makes STORE/NAME/VERSION/ of a folder with config.json, model.safetensors, tokenizer.json and modules.json.

    question, passage: prefixes that the model was trained with; by default the folder's own. Raises ConversionError for
    another architecture, a pooling that there isn't here, or files that are missing.
    """
    found = read(source)
    with making(store, name, version) as part:
        shutil.copyfile(source / TOKENIZER, part / TOKENIZER)
        bert = Bert(found.config, found.weights)
        prefixes = prefixes_of(source)
        (part / MODEL).write_bytes(graph_of(bert))
        spec = Embedding(
            size=bert.size,
            tokens=found.tokens,
            pooling=found.pooling,  # type: ignore[arg-type]  # read() has checked it
            normalised=found.normalised,
            question=prefixes[0] if question is None else question,
            passage=prefixes[1] if passage is None else passage,
        )
        golden = _golden(bert, spec, Tokens(part / TOKENIZER, spec.tokens), examples)
        Manifest(
            name=name,
            version=version,
            kind=Kind.EMBEDDER,
            files=hashes(part),
            embedding=spec.model_copy(update={"golden": golden}),
            licence=licence,
            made_by=f"models.embedder.convert of {found.config.get('_name_or_path') or source.name}",
        ).write(part)
    return ModelFolder.open(store / name / version, name, version)


def prefixes_of(source: Path) -> tuple[str, str]:
    """What a sentence-transformers folder puts before a question and before a passage. Raises ConversionError."""
    file = source / "config_sentence_transformers.json"
    try:
        prompts = dict(json.loads(file.read_text("utf-8")).get("prompts") or {}) if file.exists() else {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConversionError(f"{source.name}: {file.name} can't be read: {error!r}") from error
    return str(prompts.get("query") or ""), str(prompts.get("document") or prompts.get("passage") or "")


def read(source: Path) -> Source:
    """Raises ConversionError."""
    from safetensors.numpy import load_file

    try:
        config = json.loads((source / CONFIG).read_text("utf-8"))
        modules = json.loads((source / "modules.json").read_text("utf-8"))
        weights = load_file(str(source / WEIGHTS))
        steps = {str(one["type"]).rpartition(".")[2]: source / one["path"] for one in modules}
        pool = json.loads((steps["Pooling"] / CONFIG).read_text("utf-8"))
        limits = source / "sentence_bert_config.json"
        tokens = json.loads(limits.read_text("utf-8"))["max_seq_length"] if limits.exists() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{source} is no sentence-transformers folder with safetensors: {error!r}") from error
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise ConversionError(
            f"{source.name} is {config.get('model_type')!r} with {config.get('hidden_act')!r}: only BERT with gelu is "
            "converted here (MiniLM, BGE, E5, GTE small to large); export others with the extra `export`"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ConversionError(
            f"{source.name} has {config['position_embedding_type']} positions: only absolute ones are"
        )
    if odd := steps.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise ConversionError(f"{source.name} has the modules {sorted(odd)} too: they aren't converted here")
    if not (source / TOKENIZER).exists():
        raise ConversionError(f"{source.name} has no {TOKENIZER}")
    on = {key.removeprefix("pooling_mode_") for key, value in pool.items() if key.startswith("pooling_mode_") and value}
    if len(on) != 1 or not on <= {"mean_tokens", "cls_token"}:
        raise ConversionError(f"{source.name} pools by {sorted(on)}: there is mean_tokens and cls_token")
    return Source(
        config,
        {key: np.asarray(value, np.float32) for key, value in weights.items() if value.dtype.kind == "f"},
        "mean" if "mean_tokens" in on else "cls",
        "Normalize" in steps,
        min(tokens or config["max_position_embeddings"], config["max_position_embeddings"]),
    )


def _golden(bert: Bert, spec: Embedding, tokens: Tokens, texts: Sequence[str]) -> tuple[GoldenText, ...]:
    made = []
    for text in texts:
        (encoded,) = tokens.encode([spec.passage + text])
        hidden = bert.hidden(encoded.ids).astype(np.float32)[None]
        (vector,) = pooled(hidden, np.ones(hidden.shape[:2], np.int64), spec)
        made.append(GoldenText(text=text, vector=tuple(round(float(one), 7) for one in vector)))
    return tuple(made)
