"""`faust -A app models add` and `models index`: what goes into the store, told before anything of it is deployed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from cli.report import Report, columns
from models.adding import Wishes, prepare
from models.manifest import Kind, Manifest
from models.store import ModelStore


def add(store: ModelStore, source: Path, wishes: Wishes, *, dry_run: bool = False) -> Report:
    """Makes a version of a file or a folder, loads it as a worker does, and publishes it. Blocking: for a thread.

    Raises ModelError that says what is wrong, or what has to be said beside the file.
    """
    with tempfile.TemporaryDirectory(prefix="homunculus-add-") as folder:
        made = prepare(source, Path(folder), wishes, store.versions)
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


def index(store: ModelStore) -> Report:
    """Writes the store's index.json anew. Raises ModelError."""
    written = store.index()
    rows = [(name, ", ".join(versions)) for name, versions in sorted(written.models.items())]
    document: dict[str, Any] = {"store": store.url, "models": {name: list(v) for name, v in written.models.items()}}
    return Report(document, [f"index.json of {store.url} is written anew.", "", *columns(("name", "versions"), rows)])


def _told(manifest: Manifest) -> list[str]:
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
    return [*columns(("field", "type", "input", ""), rows), "", *columns(("what", "is"), facts)]
