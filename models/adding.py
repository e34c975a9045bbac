"""Makes a version of what people have: an .onnx file, an MLflow folder, a pickled estimator, a pretrained model, a
finished folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from core.errors import ManifestError, ModelError
from core.events import ModelName, Version
from models.describing import sample_of
from models.draft import Draft
from models.external import external_files
from models.folder import ModelFolder, hashes, plain
from models.graph import Graph
from models.manifest import MANIFEST, MODEL, Decision, Manifest
from models.mlflow import MLMODEL, MlflowModel
from models.pretrained import maker_of
from models.proving import proved, tried
from models.zipmap import MAPS, classes, unzip

PICKLES: Final = (".pkl", ".pickle", ".joblib")
_DECISION: Final = re.compile(r"\s*(?:(?P<label>.*?)\s*)?>\s*(?P<above>[^>]+)")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What whoever adds a model says of it."""

    name: str | None = None
    """Default: the file's or the folder's."""
    version: str | None = None
    """Default: one more than the highest number in the store."""
    fields: Sequence[str] = ()
    labels: Sequence[str] = ()
    output: str | None = None
    decision: str | None = None
    """LABEL>0.85; VALUE>10 or >10 for regressors."""
    reference: Path | None = None
    """A CSV file: a sample of its fields, which drift is measured against."""
    reranker: bool = False
    """Whether a model that classifies texts scores pairs of question and passage, where it doesn't say so itself."""
    trust_pickle: bool = False
    """Whether a pickle may be loaded, which runs whatever code is in it."""


def prepare(source: Path, into: Path, wishes: Wishes, versions: Callable[[str], Sequence[str]]) -> ModelFolder:
    """Makes a folder of one version inside `into`, loads it as a worker does, and returns it: ready to be published.

    versions: a model's versions in the store. Outside every event loop. Raises ModelError that says what is wrong with
    the source, or what has to be said beside it.
    """
    if source.is_dir() and (source / MANIFEST).exists():
        return _finished(source, wishes)
    if (make := maker_of(source, wishes.reranker)) is not None:
        return make(source, into, _draft(source, wishes, versions))
    mlflow = MlflowModel.read(source) if (source / MLMODEL).is_file() else None
    file = mlflow.onnx if mlflow else _model_of(source)
    draft = _draft(source, wishes, versions)
    if mlflow:
        draft = replace(draft, made_by=mlflow.made_by)
    path = into / draft.version
    if file.suffix in PICKLES:
        return _converted(file, path, draft, wishes)
    path.mkdir(parents=True)
    _copy(file, path, source.name)
    if mlflow and mlflow.columns and not wishes.fields:
        draft = replace(draft, fields=_by_signature(mlflow.columns, path / MODEL, source.name))
    return described(path, draft, source.name)


def described(path: Path, draft: Draft, where: str) -> ModelFolder:
    """Writes the manifest of a folder with a model in it, proves it, and returns the folder. Raises ModelError."""
    model = path / MODEL
    labels = classes(model)
    graph = Graph.read(model, where)
    if any(port.type.startswith(MAPS) for port in graph.outputs):
        unzip(model, where)
        graph = Graph.read(model, where)
    draft.manifest(graph, hashes(path), labels).write(path)
    return proved(ModelFolder.open(path, draft.name, draft.version))


def _draft(source: Path, wishes: Wishes, versions: Callable[[str], Sequence[str]]) -> Draft:
    name = wishes.name or (source.name if source.is_dir() else source.stem)
    _check(ModelName, name, "--name")
    version = wishes.version or str(1 + max((int(v) for v in versions(name) if v.isdecimal()), default=0))
    _check(Version, version, "--version")
    return Draft(
        name=name,
        version=version,
        fields=wishes.fields,
        labels=wishes.labels,
        output=wishes.output,
        decision=decision_of(wishes.decision),
        made_by=f"models add {source.name}",
        sample=sample_of(wishes.reference) if wishes.reference else None,
    )


def decision_of(text: str | None) -> Decision | None:
    """LABEL>0.85, or >10 and value>10 for a regressor. Raises ModelError for anything else."""
    if text is None:
        return None
    match = _DECISION.fullmatch(text)
    try:
        above = float(match["above"]) if match else float("nan")
        label = (match["label"] or None) if match else None
        return Decision(label=None if label == "value" else label, above=above)
    except (ValueError, ValidationError):
        raise ModelError(f"--decision is {text!r}; write LABEL>0.85, or value>10 for a regressor") from None


def _check(kind: Any, text: str, option: str) -> None:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        raise ModelError(
            f"{text!r} can't be a name or a version (letters, digits, dots, dashes and underscores); say {option}"
        ) from None


def _finished(source: Path, wishes: Wishes) -> ModelFolder:
    if replace(wishes, name=None, version=None) != Wishes():
        raise ModelError(f"{source.name} has a {MANIFEST}, which says all of it: change that file instead")
    manifest = Manifest.read(source / MANIFEST, f"{source.name}: {MANIFEST}")
    for said, wish, option in (
        (manifest.name, wishes.name, "--name"),
        (manifest.version, wishes.version, "--version"),
    ):
        if wish not in (None, said):
            raise ModelError(f"{option} is {wish}, but {source.name}/{MANIFEST} says {said}: change that file instead")
    return tried(ModelFolder.open(source, manifest.name, manifest.version))


def _model_of(source: Path) -> Path:
    """The one model of a folder, or the file itself."""
    if not source.exists():
        raise ModelError(f"there is no {source}")
    if source.is_file():
        found = [source]
    else:
        found = sorted(path for path in source.iterdir() if path.suffix in (".onnx", *PICKLES))
    if len(found) == 1 and found[0].suffix in (".onnx", *PICKLES):
        return found[0]
    what = f"several models in it ({', '.join(path.name for path in found)})" if len(found) > 1 else "no model in it"
    if source.is_file():
        what = "another ending"
    raise ModelError(
        f"{source.name} has {what}: add an .onnx file, a folder with one, an MLflow folder, a folder of "
        f"sentence-transformers or Hugging Face, a .gguf file, a folder with {MANIFEST}, or an estimator in a "
        f"{', '.join(PICKLES)} file"
    )


def _copy(file: Path, path: Path, where: str) -> None:
    """The model, and the files in which it keeps its tensors."""
    try:
        others = external_files(file)
    except ManifestError as error:
        raise ManifestError(f"{where}: {error}") from error
    for other in sorted(others):
        inside = (file.parent / other).resolve().is_relative_to(file.parent.resolve())
        if not (plain(other) and inside) or other == MANIFEST:
            raise ManifestError(f"{where}: {file.name} reads {other!r}, which leaves the folder")
        if not (file.parent / other).is_file():
            raise ManifestError(f"{where}: {file.name} reads {other!r}, which isn't beside it")
        (path / other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.parent / other, path / other)
    if (path / MODEL).exists():
        raise ManifestError(f"{where}: {file.name} keeps tensors in a file named {MODEL}; rename it")
    shutil.copyfile(file, path / MODEL)


def _by_signature(columns: tuple[str, ...], model: Path, where: str) -> Sequence[str]:
    """As MLflow itself feeds a model: one input gets all columns, several get those of their names."""
    graph = Graph.read(model, where)
    if len(graph.inputs) == 1:
        return [f"{graph.inputs[0].name}={','.join(columns)}"]
    named = [port.name for port in graph.inputs if port.name in columns]
    return [f"{name}={name}" for name in named]


def _converted(file: Path, path: Path, draft: Draft, wishes: Wishes) -> ModelFolder:
    from models.convert import convert, rows_of, unpickled

    if not wishes.trust_pickle:
        raise ModelError(
            f"{file.name} is a pickle, and loading it runs whatever code is in it: say --trust-pickle if you know "
            "where it comes from, or convert it where it was trained: models.convert.convert"
        )
    fields = [word.strip() for one in wishes.fields for word in one.split(",") if word.strip()]
    estimator = unpickled(file)
    return convert(
        estimator,
        fields or None,
        name=draft.name,
        version=draft.version,
        into=path,
        labels=wishes.labels or None,
        decision=draft.decision,
        made_by=draft.made_by,
        rows=None if draft.sample is None else rows_of(draft.sample, fields, estimator),
    )
