"""From a text classifier of transformers to a version that answers observations: its tokenizer goes with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.convert.export.embedder import PROBES
from models.convert.export.graph import imported, tokens_of, write_graph, write_tokenizer
from models.convert.version import making
from models.dtype import Dtype
from models.embedder.convert import EXAMPLES
from models.embedding import TOKENIZER
from models.folder import ModelFolder, hashes
from models.golden import matrices
from models.manifest import MODEL, Decision, Golden, Input, InputField, Kind, Manifest, Outputs, Thresholds
from models.proving import loaded
from models.reading import Reading
from models.scores import Scores

SUFFIX: Final = "ForSequenceClassification"
PROBABILITIES: Final = "probabilities"
VALUE: Final = "value"
CLOSE: Final = 1e-4


def classifier(
    source: Path,
    store: Path,
    *,
    name: str,
    version: str,
    field: str = "text",
    labels: Sequence[str] = (),
    decision: Decision | None = None,
    licence: str | None = None,
) -> ModelFolder:
    """Makes STORE/NAME/VERSION of a folder with config.json, weights and a tokenizer, whose architecture ends in
    ForSequenceClassification; with one label it is a regressor.

    field: the feature that has the text. labels: in place of the folder's own, in their order. Golden examples are
    transformers' own scores. Raises ConversionError for another folder, several labels at once, for what torch can't
    export, and where the graph computes something else than torch.
    """
    config = config_of(source)
    torch, transformers = imported()
    model, tokenizer = model_of(transformers, source)
    names = list(labels) or [str(label) for _, label in sorted(model.config.id2label.items())]
    if len(names) != model.config.num_labels:
        raise ConversionError(f"{source.name} has {model.config.num_labels} labels, {len(names)} are given: {names}")
    tokens = tokens_of(model, tokenizer)
    kind, output = (Kind.REGRESSOR, VALUE) if len(names) == 1 else (Kind.CLASSIFIER, PROBABILITIES)
    module = _scoring(torch, model, kind)
    scores = [_scores(torch, module, tokenizer, text, tokens) for text in PROBES]
    with making(store, name, version) as part:
        write_tokenizer(tokenizer, part / TOKENIZER, source.name)
        write_graph(module, part / MODEL, output, tokens, f"{source.name} ({config['model_type']})")
        manifest = Manifest(
            name=name,
            version=version,
            kind=kind,
            inputs={"text": Input(dtype=Dtype.STRING, fields=(InputField(name=field),))},
            reading=Reading(tokens=tokens),
            outputs=Outputs(probabilities=output) if kind is Kind.CLASSIFIER else Outputs(value=output),
            labels=tuple(names) if kind is Kind.CLASSIFIER else (),
            files=hashes(part),
            thresholds=Thresholds(decision=decision),
            golden=tuple(
                _golden(field, text, row, names if kind is Kind.CLASSIFIER else [VALUE])
                for text, row in zip(EXAMPLES, scores[: len(EXAMPLES)], strict=True)
            ),
            licence=licence,
            made_by=f"models.convert.export of {source.resolve().name} ({config['model_type']})",
        )
        manifest.write(part)
        _prove(ModelFolder.open(part, name, version), field, np.stack(scores))
    return ModelFolder.open(store / name / version, name, version)


def architectures(source: Path) -> list[str]:
    """Those that a folder's config.json names; none where it can't be read."""
    try:
        return [str(one) for one in json.loads((source / "config.json").read_bytes()).get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def config_of(source: Path) -> dict[str, Any]:
    """Of a model that classifies. Raises ConversionError for another folder, and for several labels at once."""
    if not any(one.endswith(SUFFIX) for one in architectures(source)):
        raise ConversionError(f"{source} is no text classifier: its config.json names no architecture ...{SUFFIX}")
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    if config.get("problem_type") == "multi_label_classification":
        raise ConversionError(f"{source.name} gives several labels at once: an answer here has one")
    return config


def model_of(transformers: Any, source: Path) -> tuple[Any, Any]:
    """The model and its tokenizer. Raises ConversionError."""
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), **options)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            str(source), attn_implementation="eager", dtype="float32", **options
        )
    except Exception as error:  # code that wants to be trusted, architectures that are newer, files that are missing
        raise ConversionError(f"transformers can't load {source.name}: {error}") from error
    return model.eval(), tokenizer


def _scoring(torch: Any, model: Any, kind: Kind) -> Any:
    class Scoring(torch.nn.Module):  # type: ignore[misc]  # torch is there or not
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return logits.softmax(dim=-1) if kind is Kind.CLASSIFIER else logits

    return Scoring().eval()


def _scores(torch: Any, module: Any, tokenizer: Any, text: str, tokens: int) -> NDArray[np.float32]:
    """As transformers' own pipeline feeds it, token types and all."""
    given = tokenizer(text, truncation=True, max_length=tokens, return_tensors="pt")
    with torch.no_grad():
        logits = module.model(**given).logits[0]
    one = logits.softmax(dim=-1) if len(logits) > 1 else logits
    found: NDArray[np.float32] = one.numpy()
    return found


def _golden(field: str, text: str, row: NDArray[np.float32], names: Sequence[str]) -> Golden:
    expected = {name: round(float(score), 7) for name, score in zip(names, row, strict=True)}
    return Golden(inputs={field: text}, expected=expected)


def _prove(folder: ModelFolder, field: str, theirs: NDArray[np.float32]) -> None:
    """As a worker computes it, against torch. Raises ConversionError."""
    rows = [{field: text} for text in PROBES]
    with loaded(folder) as runtime:
        ours = Scores.of(folder.manifest, runtime.compute(matrices(folder.manifest, rows))).matrix
    off = np.abs(ours - theirs).max(axis=1)
    if not (off <= CLOSE * max(1.0, float(np.abs(theirs).max()))).all():
        text = PROBES[int(off.argmax())]
        raise ConversionError(
            f"the graph of {folder.identity} computes something else than torch: off by {off.max():.2g} for "
            f"{text[:40]!r}"
        )
