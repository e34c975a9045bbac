"""`faust -A app models add` and `models index`: what goes into the store, told before anything of it is deployed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.report import Report, columns
from core.errors import ModelError
from models.adding import Wishes, prepare
from models.folder import ModelFolder
from models.manifest import MANIFEST, Kind, Manifest
from models.store import ModelStore


def add(
    store: ModelStore,
    source: Path,
    wishes: Wishes,
    *,
    precisions: Sequence[str] = (),
    rows: Path | None = None,
    dry_run: bool = False,
) -> Report:
    """Makes a version of a file or a folder, loads it as a worker does, and publishes it. Blocking: for a thread.

    precisions: those to be made beside it; rows: a file of rows to measure them on. Raises ModelError that says what is
    wrong, or what has to be said beside the file.
    """
    with tempfile.TemporaryDirectory(prefix="homunculus-add-") as folder:
        made = prepare(source, Path(folder), wishes, store.versions)
        if precisions:
            made = _with_precisions(made, Path(folder), precisions, rows)
        if not dry_run:
            store.publish(made.path)
    manifest = made.manifest
    document = {
        "model": manifest.name,
        "version": manifest.version,
        "store": store.url,
        "published": not dry_run,
        "manifest": manifest.model_dump(mode="json", exclude_none=True, exclude={"reference_confidence", "features"}),
    }
    after = f"Deploy it: faust -A app models promote {manifest.name} {manifest.version}"
    if dry_run:
        after = "Nothing was published (--dry-run)."
    where = f"{manifest.identity} {'would be' if dry_run else 'is'} in {store.url}. It was loaded, and computes."
    return Report(document, [where, "", *_told(manifest), "", after])


def precise(store: ModelStore, path: Path, precisions: Sequence[str], rows: Path | None) -> Report:
    """Makes precisions, by default all that can be made, in a folder that isn't in the store yet. Blocking: for a
    thread. Raises ModelError."""
    if store.holds(path):
        raise ModelError(
            f"{path} is in the model store, where a version never changes: copy it, give the copy another version in "
            f"its {MANIFEST}, and `models add` that with --precision"
        )
    manifest = Manifest.read(path / MANIFEST, f"{path.name}: {MANIFEST}")
    folder = ModelFolder.open(path, manifest.name, manifest.version)
    made = _made(folder, precisions, rows).manifest
    document = {
        "model": made.name,
        "version": made.version,
        "precisions": {name: one.model_dump(exclude_none=True) for name, one in made.offered.items()},
    }
    after = f"Publish it: faust -A app models add {path}"
    return Report(document, [f"{made.identity} in {path}:", "", *_precisions(made), "", after])


def _with_precisions(made: ModelFolder, temporary: Path, precisions: Sequence[str], rows: Path | None) -> ModelFolder:
    if not made.path.is_relative_to(temporary):  # a finished folder, which stays as it is
        copy = temporary / "copy" / made.manifest.version
        shutil.copytree(made.path, copy)
        made = ModelFolder.open(copy, made.manifest.name, made.manifest.version)
    return _made(made, precisions, rows)


def _made(folder: ModelFolder, precisions: Sequence[str], rows: Path | None) -> ModelFolder:
    from models.convert.coarser import COARSER
    from models.convert.precisions import add_precisions, read_rows

    return add_precisions(folder, precisions or tuple(COARSER), [] if rows is None else read_rows(rows))


def _precisions(manifest: Manifest) -> list[str]:
    rows = [
        (
            name,
            one.file,
            f"{one.max_error:.3g}" if one.rows else "-",
            one.rows or "-",
            "-" if one.latency is None else f"{1e3 * one.latency:.3g} ms",
            "-" if one.bytes is None else f"{one.bytes / 1e6:,.2f} MB",
        )
        for name, one in manifest.offered.items()
    ]
    return columns(("precision", "file", "largest error", "over rows", "64 rows take", "weights"), rows)


def index(store: ModelStore) -> Report:
    """Writes the store's index.json anew. Raises ModelError."""
    written = store.index()
    rows = [(name, ", ".join(versions)) for name, versions in sorted(written.models.items())]
    document: dict[str, Any] = {"store": store.url, "models": {name: list(v) for name, v in written.models.items()}}
    return Report(document, [f"index.json of {store.url} is written anew.", "", *columns(("name", "versions"), rows)])


def _told(manifest: Manifest) -> list[str]:
    if not manifest.kind.scores:
        return columns(("what", "is"), _of_texts(manifest))
    rows = [
        (field.name, given.dtype, name, "required" if field.required else f"default {field.default}")
        for name, given in manifest.inputs.items()
        for field in given.fields
    ]
    decision = manifest.thresholds.decision
    facts = [
        ("kind", manifest.kind),
        ("labels", ", ".join(manifest.labels) if manifest.kind is Kind.CLASSIFIER else "-"),
        ("read from output", manifest.outputs.probabilities or manifest.outputs.value or "-"),
        ("decision", f"{decision.label or 'value'} > {decision.above:g}" if decision else "-"),
        ("golden examples", str(len(manifest.golden))),
        ("made by", manifest.made_by or "-"),
    ]
    if manifest.features:
        facts.insert(-1, ("features watched", ", ".join(manifest.features)))
    coarser = ["", *_precisions(manifest)] if manifest.precisions else []
    return [*columns(("field", "type", "input", ""), rows), "", *columns(("what", "is"), facts), *coarser]


def _of_texts(manifest: Manifest) -> list[tuple[str, str]]:
    facts = [("kind", str(manifest.kind))]
    if (embedding := manifest.embedding) is not None:
        facts += [
            ("components", str(embedding.size)),
            ("tokens of a text", str(embedding.tokens)),
            ("before a question", repr(embedding.question)),
            ("before a passage", repr(embedding.passage)),
            ("golden texts", str(len(embedding.golden))),
        ]
    if (ranking := manifest.ranking) is not None:
        facts += [
            ("tokens of a pair", str(ranking.tokens)),
            ("golden pairs", str(len(ranking.golden))),
        ]
    if (language := manifest.language) is not None:
        facts += [
            ("weights", language.weights),
            ("context", f"{language.context:,} tokens"),
            ("golden replies", str(len(language.golden))),
        ]
    return [*facts, ("licence", manifest.licence or "-"), ("made by", manifest.made_by or "-")]
