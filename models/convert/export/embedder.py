"""From any sentence-transformers folder to an embedder version: its modules become one graph, which pools by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.convert.export.graph import imported, tokens_of, write_graph, write_tokenizer
from models.convert.version import making
from models.device import Device
from models.embedder.convert import EXAMPLES, prefixes_of
from models.embedder.embedder import Embedder
from models.embedding import TOKENIZER, Embedding, GoldenText
from models.folder import ModelFolder, hashes
from models.inference import InferenceThread
from models.manifest import MODEL, Kind, Manifest

MODULES: Final = {"Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"}
"""Those of sentence-transformers that compute the same whatever was asked before."""
PROBES: Final = (*EXAMPLES, "", "UPPER and lower", "1 + 1 = 2?", "The sea is wide, and nobody knows its end. " * 60)
"""What both sides must agree on, one by one and in batches."""
CLOSE: Final = 1e-4
OUTPUT: Final = "vector"


def embedder(
    source: Path,
    store: Path,
    *,
    name: str,
    version: str,
    question: str | None = None,
    passage: str | None = None,
    licence: str | None = None,
) -> ModelFolder:
    """Makes STORE/NAME/VERSION of a sentence-transformers folder; its golden vectors are sentence-transformers' own.

    question, passage: prefixes; by default the folder's prompts of these kinds. Raises ConversionError for modules that
    aren't known here, for what torch can't export, and where the graph computes something else than torch.
    """
    _check(source)
    torch, _ = imported()
    model = _loaded(source)
    transformer = model[0]
    tokens = tokens_of(transformer, model.tokenizer)
    model.max_seq_length = tokens
    prefixes = prefixes_of(source)
    spec = Embedding(
        size=_encoded(model, ["a"]).shape[1],
        tokens=tokens,
        output=OUTPUT,
        pooling="graph",
        normalised=type(model[-1]).__name__ == "Normalize",
        question=prefixes[0] if question is None else question,
        passage=prefixes[1] if passage is None else passage,
    )
    with making(store, name, version) as part:
        write_tokenizer(model.tokenizer, part / TOKENIZER, source.name)
        write_graph(_whole(torch, model), part / MODEL, OUTPUT, tokens, f"{source.name} ({_kind(transformer)})")
        vectors = _encoded(model, [spec.passage + text for text in EXAMPLES])
        golden = [
            GoldenText(text=text, vector=tuple(round(float(one), 7) for one in vector))
            for text, vector in zip(EXAMPLES, vectors, strict=True)
        ]
        Manifest(
            name=name,
            version=version,
            kind=Kind.EMBEDDER,
            files=hashes(part),
            embedding=spec.model_copy(update={"golden": tuple(golden)}),
            licence=licence,
            made_by=f"models.convert.export of {source.resolve().name} ({_kind(transformer)})",
        ).write(part)
        _prove(ModelFolder.open(part, name, version), model)
    return ModelFolder.open(store / name / version, name, version)


def _check(source: Path) -> None:
    """The modules, before anything is loaded: a folder may name classes of its own."""
    try:
        modules = json.loads((source / "modules.json").read_text("utf-8"))
        kinds = [str(one["type"]) for one in modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{source} is no sentence-transformers folder: {error!r}") from error
    for kind in kinds:
        if not kind.startswith("sentence_transformers.") or kind.rpartition(".")[2] not in MODULES:
            raise ConversionError(f"{source.name} has the module {kind}; known are {', '.join(sorted(MODULES))}")
    if not kinds or not kinds[0].endswith(".Transformer"):
        raise ConversionError(f"{source.name} doesn't begin with a Transformer")


def _loaded(source: Path) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConversionError(
            f"{error.name} isn't installed: exporting needs the extra export (pip install -e '.[export]')"
        ) from None
    # Eager attention is the one that its exporter knows in every architecture.
    options = {"model_kwargs": {"attn_implementation": "eager", "dtype": "float32"}, "local_files_only": True}
    try:
        model = SentenceTransformer(str(source), device="cpu", **options)
    except Exception as error:  # code that wants to be trusted, architectures that are newer, files that are missing
        raise ConversionError(f"sentence-transformers can't load {source.name}: {error}") from error
    if any(not getattr(each, "include_prompt", True) for each in model):
        raise ConversionError(f"{source.name} leaves its prompt out when it pools: that isn't known here")
    return model


def _kind(transformer: Any) -> str:
    return str(transformer.auto_model.config.model_type)


def _encoded(model: Any, texts: Sequence[str], batch: int = 1) -> NDArray[np.float32]:
    # "" in place of a prompt that the folder may apply to every text: ours is put before it already.
    vectors = model.encode(list(texts), prompt="", batch_size=batch, convert_to_numpy=True, show_progress_bar=False)
    return np.asarray(vectors, np.float32)


def _whole(torch: Any, model: Any) -> Any:
    """All modules in a row, as sentence-transformers calls them."""

    class Whole(torch.nn.Module):  # type: ignore[misc]  # torch is there or not
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.nn.ModuleList(model)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            for step in self.steps:
                features = step(features)
            return features["sentence_embedding"]

    return Whole()


def _prove(folder: ModelFolder, model: Any) -> None:
    """As a worker computes it, against torch. Raises ConversionError."""
    thread = InferenceThread()
    ours = Embedder(folder, Device.of("cpu"), thread)
    alone = np.concatenate([ours.vectors([text]) for text in PROBES])
    together = ours.vectors(PROBES)
    ours.close()
    asyncio.run(thread.close())
    theirs = _encoded(model, PROBES)
    for got, how in ((alone, "alone"), (together, "in a batch")):
        off = np.abs(got - theirs).max(axis=1)
        if not (off <= CLOSE * max(1.0, float(np.abs(theirs).max()))).all():
            raise ConversionError(
                f"the graph of {folder.identity} computes something else than torch: off by {off.max():.2g} for "
                f"{PROBES[int(off.argmax())][:40]!r} {how}"
            )
