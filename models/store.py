"""The model store: NAME/VERSION/ folders, on this machine or behind any fsspec URL."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from core.errors import ManifestError, ModelError, ModelNotFoundError
from models.features import SessionFeature
from models.folder import ModelFolder, check_listing
from models.manifest import MANIFEST, Manifest

log = logging.getLogger(__name__)

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


class ModelStore:
    """Lists, fetches and publishes model versions. Blocking: on an event loop, call it in a thread."""

    def __init__(self, url: str, cache: Path | None = None) -> None:
        """url: a folder, or an fsspec URL (file://, memory://, s3://, ...). It may not exist yet, or be empty.

        cache: where versions of a remote store are copied to before they are loaded; by default a private temporary
        folder. Raises ModelError for a URL that fsspec can't open, naming what is missing.
        """
        self.url = url
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ModelError(f"model store {url}: {error}") from error
        self._root = root.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)
        self._cache = cache

    def models(self) -> list[str]:
        """Names with at least one version, sorted. An empty or missing store has none."""
        with self._reading(self.url):
            return [name for name in sorted(self._folders(self._root)) if self.versions(name)]

    def versions(self, name: str) -> list[str]:
        """Versions of a model that have a manifest, oldest first where they are numbered: 9 before 10."""
        if not _PLAIN.fullmatch(name):
            return []
        with self._reading(name):
            found = self._folders(f"{self._root}/{name}")
            whole = (v for v in found if self._fs.isfile(f"{self._root}/{name}/{v}/{MANIFEST}"))
            return sorted(whole, key=_numbered)

    def fetch(self, name: str, version: str) -> ModelFolder:
        """A version on this machine, every file checked; remote ones are copied first, whole or not at all.

        Raises ModelNotFoundError, ManifestError or TamperedError, naming model@version and the file; ModelError when
        the store can't be read.
        """
        who = f"{name}@{version}"
        if not (_PLAIN.fullmatch(name) and _PLAIN.fullmatch(version)):
            raise ModelNotFoundError(f"{who}: names and versions are letters, digits, dots, dashes and underscores")
        with self._reading(who):
            there = f"{self._root}/{name}/{version}"
            if not self._fs.isdir(there):
                known = ", ".join(self.versions(name)) or "none"
                raise ModelNotFoundError(f"{who} isn't in the model store {self.url}; versions there: {known}")
            if self._local:
                return ModelFolder.open(Path(there), name, version)
            return self._copied(there, name, version)

    def publish(self, folder: Path) -> ModelFolder:
        """Puts a version into the store, where its manifest says it belongs. A version never changes: the same
        bytes again are fine, others are refused.

        Raises ManifestError or TamperedError as fetch does, ModelError when the version exists with other content.
        """
        manifest = Manifest.read(folder / MANIFEST, f"{folder.name}: {MANIFEST}")
        name, version, who = manifest.name, manifest.version, manifest.identity
        ours = ModelFolder.open(folder, name, version)
        if version in self.versions(name):
            there = self.fetch(name, version)
            if there.sha256 != ours.sha256:
                raise ModelError(f"{who} is in the model store with other content; give this one another version")
            return there
        with self._reading(who):
            if self._local:
                self._move_in(folder, Path(self._root) / name / version)
            else:
                for file in (*manifest.files, MANIFEST):  # the manifest last: until then the version isn't listed
                    self._fs.makedirs(f"{self._root}/{name}/{version}/{file}".rpartition("/")[0], exist_ok=True)
                    self._fs.put_file(str(folder / file), f"{self._root}/{name}/{version}/{file}")
        return self.fetch(name, version)

    def needed(self) -> frozenset[SessionFeature]:
        """The session features that any version in the store asks for. Manifests that can't be read are left out
        with a warning: such a version can't go live either."""
        features: set[SessionFeature] = set()
        for name in self.models():
            for version in self.versions(name):
                with self._reading(f"{name}@{version}"):
                    raw = self._fs.cat_file(f"{self._root}/{name}/{version}/{MANIFEST}")
                try:
                    features.update(Manifest.parse(raw, f"{name}@{version}: {MANIFEST}").session_features)
                except ManifestError as error:
                    log.warning("left out of the features to keep: %s", error)
        return frozenset(features)

    def _copied(self, there: str, name: str, version: str) -> ModelFolder:
        who = f"{name}@{version}"
        raw = self._fs.cat_file(f"{there}/{MANIFEST}") if self._fs.isfile(f"{there}/{MANIFEST}") else None
        if raw is None:
            raise ManifestError(f"{who}: {MANIFEST} can't be read: there is none")
        files = {path.removeprefix(f"{there}/") for path in self._fs.find(there)} - {MANIFEST}
        manifest = Manifest.parse(raw, f"{who}: {MANIFEST}")
        check_listing(manifest, name, version, files)
        if self._cache is None:
            self._cache = Path(tempfile.mkdtemp(prefix="homunculus-models-"))
        target = self._cache / name / f"{version}-{hashlib.sha256(raw).hexdigest()[:16]}"
        if target.exists():
            try:
                return ModelFolder.open(target, name, version)
            except ModelError as error:
                log.warning("the copy in %s is damaged and is made anew: %s", target, error)
                shutil.rmtree(target)
        with _beside(target) as part:
            (part / MANIFEST).write_bytes(raw)
            for file in manifest.files:
                (part / file).parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(f"{there}/{file}", str(part / file))
            ModelFolder.open(part, name, version)
            if not target.exists():  # or another worker with the same cache was quicker
                part.rename(target)
        return ModelFolder.open(target, name, version)

    def _move_in(self, folder: Path, target: Path) -> None:
        with _beside(target) as part:
            shutil.copytree(folder, part, dirs_exist_ok=True)
            part.rename(target)

    def _folders(self, path: str) -> set[str]:
        if not self._fs.isdir(path):
            return set()
        entries: list[dict[str, Any]] = self._fs.ls(path, detail=True)
        names = (e["name"].rstrip("/").rpartition("/")[2] for e in entries if self._fs.isdir(e["name"]))
        return {name for name in names if _PLAIN.fullmatch(name)}

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turns whatever a file system raises into a ModelError, so that a store out of reach stops no worker."""
        self._fs.invalidate_cache()
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{what}: the model store {self.url} can't be used: {error!r}") from error


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new folder beside the target, to be renamed to it once it is whole; what isn't is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _numbered(version: str) -> tuple[tuple[int, int | str], ...]:
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|\D+", version))
