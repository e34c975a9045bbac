"""Models as Hugging Face and llama.cpp keep them: what each becomes, and by which converter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from core.errors import ConversionError, ModelError
from models.draft import Draft
from models.folder import ModelFolder

CONFIG: Final = "config.json"
CAUSAL: Final = "ForCausalLM"

Maker = Callable[[Path, Path, Draft], ModelFolder]
"""Source, a store, what was said of it -> the version, in that store."""


def maker_of(source: Path, reranker: bool = False) -> Maker | None:
    """None for what is something else. reranker: it is one, whether or not it says so itself. Raises ModelError for a
    pretrained model that nothing can be made of here."""
    from models.convert.export.reranker import ranks

    if reranker or (source.is_dir() and ranks(source)):
        return _reranker
    if source.is_file():
        return _decoder if source.suffix == ".gguf" else None
    if (source / "modules.json").is_file():
        return _embedder
    if not (source / CONFIG).is_file() or any(source.glob("*.onnx")):
        return None
    from models.convert.export.classifier import SUFFIX, architectures

    found = architectures(source)
    if any(one.endswith(SUFFIX) for one in found):
        return _classifier
    if any(one.endswith(CAUSAL) for one in found):
        return _decoder
    raise ModelError(
        f"{source.name} is {', '.join(found) or f'of no architecture that its {CONFIG} names'}: known are "
        f"...{SUFFIX}, ...{CAUSAL}, and folders of sentence-transformers, which have a modules.json"
    )


def _embedder(source: Path, store: Path, draft: Draft) -> ModelFolder:
    from models.convert import export
    from models.embedder.convert import convert

    _only(draft, "an embedder")
    try:
        return convert(source, store, name=draft.name, version=draft.version)
    except ConversionError as without_torch:
        try:
            return export.embedder(source, store, name=draft.name, version=draft.version)
        except ConversionError as error:
            raise ConversionError(f"{error}; without torch: {without_torch}") from error


def _classifier(source: Path, store: Path, draft: Draft) -> ModelFolder:
    from models.convert import export

    _only(replace(draft, fields=(), labels=(), decision=None), "a text classifier")
    fields = [word.strip() for one in draft.fields for word in one.split(",")] or ["text"]
    if len(fields) > 1:
        raise ModelError(f"{source.name} reads one text, and --fields names {', '.join(fields)}")
    return export.classifier(
        source,
        store,
        name=draft.name,
        version=draft.version,
        field=fields[0],
        labels=draft.labels,
        decision=draft.decision,
    )


def _reranker(source: Path, store: Path, draft: Draft) -> ModelFolder:
    from models.convert import export

    _only(draft, "a reranker")
    return export.reranker(source, store, name=draft.name, version=draft.version)


def _decoder(source: Path, store: Path, draft: Draft) -> ModelFolder:
    from models.convert.gguf import convert

    _only(draft, "a language model")
    return convert(source, store, name=draft.name, version=draft.version)


def _only(draft: Draft, what: str) -> None:
    """Raises ModelError where something was said that such a model has no use for."""
    for said, option in (
        (draft.fields, "--fields"),
        (draft.labels, "--labels"),
        (draft.output, "--output"),
        (draft.decision, "--decision"),
        (draft.sample, "--reference"),
    ):
        if said:
            raise ModelError(f"{option} says nothing of {what}")
