"""The model store: NAME/VERSION/ folders, on this machine or behind any fsspec URL."""

from __future__ import annotations

import dataclasses
import logging
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem

from core.errors import ManifestError, ModelError, ModelNotFoundError, StoreAwayError, TamperedError
from models.cache import ModelCache
from models.download import download, patience, small
from models.features import SessionFeature
from models.filesystem import opened, shown
from models.folder import ModelFolder, check_listing
from models.index import INDEX, Index
from models.manifest import LARGEST, MANIFEST, Manifest, too_large

log = logging.getLogger(__name__)

PAUSES: Final = [0.2, 0.5]
"""Seconds before a list or a manifest is asked for again."""
_PATIENCE_S: Final = 20
"""Of a list or a manifest: while a server is silent, the cache has to wait."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)

Progress = Callable[[int, int | None], None]
"""Called with the bytes of a version that are here, and with how many there will be (None: the store doesn't say).
Comes from other threads, and must not raise."""


class ModelStore:
    """Lists, fetches and publishes model versions. Blocking: on an event loop, call it in a thread."""

    def __init__(self, url: str, cache: Path | None = None) -> None:
        """url: a folder, or an fsspec URL (file://, memory://, s3://, gs://, https://, ...). It may not exist yet, or
        be empty. Behind http(s):// it is read-only, and listed by its index.json.

        cache: where versions of a remote store are copied to before they are loaded, and what serves while the store
        can't be reached; by default a private temporary folder. Raises ModelError for a URL that fsspec can't open,
        naming what is missing.
        """
        self.url = shown(url)
        """As it may be shown."""
        self._fs, root = opened(url)
        self._root = root.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)
        self._http = isinstance(self._fs, HTTPFileSystem)
        self._cache: ModelCache | None = None
        if cache is not None and not self._local:  # apart from other stores, which may call others by the same name
            self._cache = ModelCache(cache / sha256(self.url.encode()).hexdigest()[:12])

    def models(self) -> list[str]:
        """Names with at least one version, sorted. An empty or missing store has none; while the store is away, those
        that are cached."""
        try:
            return self._models()
        except StoreAwayError as away:
            return sorted({manifest.name for manifest in self._kept(away)})

    def versions(self, name: str) -> list[str]:
        """Versions of a model that have a manifest, oldest first where they are numbered: 9 before 10. While the store
        is away, those that are cached."""
        try:
            return self._versions(name)
        except StoreAwayError as away:
            return sorted({one.version for one in self._kept(away) if one.name == name}, key=_numbered)

    def fetch(self, name: str, version: str, progress: Progress | None = None) -> ModelFolder:
        """A version on this machine, every file checked; remote ones are copied first, whole or not at all. A copy that
        breaks off goes on where it was, now and in the next call. While the store is away, a cached version is taken.

        progress: told of a copy while it is made; never called where nothing has to be copied. Raises
        ModelNotFoundError, ManifestError or TamperedError, naming model@version and the file; StoreAwayError when the
        store can't be read and the version isn't cached.
        """
        who = f"{name}@{version}"
        if not (_PLAIN.fullmatch(name) and _PLAIN.fullmatch(version)):
            raise ModelNotFoundError(f"{who}: names and versions are letters, digits, dots, dashes and underscores")
        if self._local:
            with self._reading(who):
                if not self._fs.isdir(self._path(name, version)):
                    raise self._unknown(name, version)
                return ModelFolder.open(Path(self._path(name, version)), name, version)
        try:
            return self._copied(name, version, progress)
        except StoreAwayError as away:
            kept = None if self._cache is None else self._cache.newest(name, version)
            if kept is None:
                raise
            log.warning("%s is taken from the cache: %s", who, away)
            return kept

    def manifest(self, name: str, version: str) -> Manifest:
        """What a version says of itself, unchecked against its files, which stay where they are. Raises
        ModelNotFoundError, ManifestError, and StoreAwayError when the store can't be read."""
        who = f"{name}@{version}"
        raw = self._read(who, name, version, MANIFEST) if version in self._versions(name) else None
        if raw is None:
            raise self._unknown(name, version)
        return Manifest.parse(raw, f"{who}: {MANIFEST}")

    def publish(self, folder: Path) -> ModelFolder:
        """Puts a version into the store, where its manifest says it belongs, and into the store's index. A version
        never changes: the same bytes again are fine, others are refused.

        Raises ManifestError or TamperedError as fetch does, ModelError when the version exists with other content, or
        the store can only be read.
        """
        manifest = Manifest.read(folder / MANIFEST, f"{folder.name}: {MANIFEST}")
        name, version, who = manifest.name, manifest.version, manifest.identity
        ours = ModelFolder.open(folder, name, version)
        self._check_writable()
        if version in self._versions(name):
            there = self.fetch(name, version)
            if there.sha256 != ours.sha256:
                raise ModelError(f"{who} is in the model store with other content; give this one another version")
            return there
        with self._reading(who):
            if self._local:
                self._move_in(folder, Path(self._root) / name / version)
            else:
                for file in (*manifest.files, MANIFEST):  # the manifest last: until then the version isn't listed
                    self._fs.makedirs(self._path(name, version, file).rpartition("/")[0], exist_ok=True)
                    self._fs.put_file(str(folder / file), self._path(name, version, file))
        self.index()
        return self.fetch(name, version)

    def index(self) -> Index:
        """Writes index.json anew from what is there: whoever serves the store's files over HTTP needs it, and so does
        a store that was filled by other means than `publish`.

        Raises ModelError when the store can only be read, or can't be reached.
        """
        self._check_writable()
        index = Index(models={name: tuple(self._versions(name)) for name in self._models()})
        with self._reading(self.url):
            if self._local:
                Path(self._root).mkdir(parents=True, exist_ok=True)
                fresh = Path(self._root) / f".{INDEX}.{secrets.token_hex(4)}"
                fresh.write_text(index.text(), encoding="utf-8")
                fresh.replace(Path(self._root) / INDEX)
            else:
                self._fs.pipe_file(self._path(INDEX), index.text().encode())
        return index

    def holds(self, folder: Path) -> bool:
        """Whether a folder of this machine lies in the store, where versions never change."""
        return self._local and folder.resolve().is_relative_to(Path(self._root).resolve())

    def needed(self) -> frozenset[SessionFeature]:
        """The session features that any version in the store asks for; while the store is away, of those that are
        cached. Manifests that can't be read are left out with a warning: such a version can't go live either."""
        features: set[SessionFeature] = set()
        try:
            for name in self._models():
                for version in self._versions(name):
                    try:
                        raw = self._read(f"{name}@{version}", name, version, MANIFEST)
                        features.update(Manifest.parse(raw or b"", f"{name}@{version}: {MANIFEST}").session_features)
                    except ManifestError as error:
                        log.warning("left out of the features to keep: %s", error)
        except StoreAwayError as away:
            for manifest in self._kept(away):
                features.update(manifest.session_features)
        return frozenset(features)

    def _models(self) -> list[str]:
        if self._http:
            return sorted(name for name, versions in self._listed().items() if versions)
        with self._reading(self.url):
            names = sorted(self._folders(self._root))
        return [name for name in names if self._versions(name)]

    def _versions(self, name: str) -> list[str]:
        if not _PLAIN.fullmatch(name):
            return []
        if self._http:
            return sorted(self._listed().get(name, ()), key=_numbered)
        with self._reading(name):
            found = self._folders(self._path(name))
            return sorted((v for v in found if self._is_file(name, v, MANIFEST)), key=_numbered)

    def _listed(self) -> dict[str, tuple[str, ...]]:
        raw = self._read(self.url, INDEX)
        if raw is None:
            log.warning(
                "there is no %s in the model store %s, so it counts as empty: write it where the store can be written, "
                "with `faust -A app models index`",
                INDEX,
                self.url,
            )
            return {}
        return dict(Index.parse(raw, f"{self.url}/{INDEX}").models)

    def _copied(self, name: str, version: str, progress: Progress | None) -> ModelFolder:
        who = f"{name}@{version}"
        raw = self._read(who, name, version, MANIFEST)
        if raw is None:
            raise self._unknown(name, version)
        manifest = Manifest.parse(raw, f"{who}: {MANIFEST}")
        check_listing(manifest, name, version, set(manifest.files))  # those that are missing, the copying tells
        if self._cache is None:
            self._cache = ModelCache(Path(tempfile.mkdtemp(prefix="homunculus-models-")))
        target = self._cache.folder_of(name, version, raw)
        if target.exists():
            try:
                return ModelFolder.open(target, name, version)
            except ModelError as error:
                log.warning("the copy in %s is damaged and is made anew: %s", target, error)
                shutil.rmtree(target)
        with _beside(target) as part:
            (part / MANIFEST).write_bytes(raw)
            self._copy(manifest, part, progress)
            folder = ModelFolder.open(part, name, version)
            if not target.exists():  # or another worker with the same cache was quicker
                part.rename(target)
        return dataclasses.replace(folder, path=target)

    def _copy(self, manifest: Manifest, part: Path, progress: Progress | None) -> None:
        """Fills a folder with the manifest's files, from the cache or the store."""
        cache = self._cache
        assert cache is not None
        missing = {file for file, expected in manifest.files.items() if not cache.has(expected)}
        total = self._size(manifest, missing) if progress else None
        done: dict[str, int] = {}

        def told(file: str, here: int) -> None:
            done[file] = here
            if progress:
                progress(sum(done.values()), total)

        for file, expected in manifest.files.items():
            there = self._path(manifest.name, manifest.version, file)
            bring = partial(download, self._fs, there, expected=expected, told=partial(told, file))
            try:
                with self._reading(manifest.identity):
                    cache.place(expected, part / file, bring)
            except _MissingError:
                raise ManifestError(f"{manifest.identity}: {file} is listed in {MANIFEST}, but missing") from None
            except TamperedError as error:
                raise TamperedError(f"{manifest.identity}: {file} has {error}") from None
            except StoreAwayError as error:
                raise StoreAwayError(f"{manifest.identity}: {file} can't be copied: {error}") from error

    def _size(self, manifest: Manifest, files: set[str]) -> int | None:
        try:
            paths = (self._path(manifest.name, manifest.version, file) for file in files)
            return sum(int(self._fs.info(path, **patience(self._fs, _PATIENCE_S))["size"]) for path in paths)
        except Exception as error:
            log.info("%s: its size isn't known: %r", manifest.identity, error)
            return None

    def _read(self, what: str, *parts: str) -> bytes | None:
        """A small file of the store, or None where there is none."""
        for pause in (*PAUSES, None):
            try:
                with self._reading(what):
                    whole = small(self._fs, self._path(*parts), LARGEST, _PATIENCE_S)
                    if whole is None:
                        raise too_large(f"{what}: {parts[-1]}")
                    return whole
            except _MissingError:
                return None
            except StoreAwayError as away:
                if pause is None or self._local or isinstance(away.__cause__, PermissionError):
                    raise
                time.sleep(pause)
        return None

    def _unknown(self, name: str, version: str) -> ModelNotFoundError:
        known = ", ".join(self._versions(name)) or "none"
        return ModelNotFoundError(f"{name}@{version} isn't in the model store {self.url}; versions there: {known}")

    def _kept(self, away: StoreAwayError) -> list[Manifest]:
        """What the cache can stand in with while the store is away. Raises that it is away where there is nothing."""
        kept = [] if self._cache is None else [manifest for _, manifest in self._cache.kept()]
        if not kept:
            raise away
        log.warning("versions that are cached stand in for the model store: %s", away)
        return kept

    def _check_writable(self) -> None:
        if self._http:
            raise ModelError(
                f"the model store {self.url} can only be read; publish to the folder or the bucket that is served there"
            )

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *(map(quote, parts) if self._http else parts)))

    def _move_in(self, folder: Path, target: Path) -> None:
        with _beside(target) as part:
            shutil.copytree(folder, part, dirs_exist_ok=True)
            part.rename(target)

    def _folders(self, path: str) -> set[str]:
        """Names of the folders in one. Not by isdir and isfile, which say no on some buckets when the store is away."""
        try:
            entries: list[dict[str, Any]] = self._fs.ls(path, detail=True, **patience(self._fs, _PATIENCE_S))
        except FileNotFoundError:
            return set()
        names = (e["name"].rstrip("/").rpartition("/")[2] for e in entries if self._is_folder(e))
        return {name for name in names if _PLAIN.fullmatch(name)}

    def _is_folder(self, entry: dict[str, Any]) -> bool:
        linked = self._local and Path(entry["name"]).is_dir()
        return linked or entry["type"] == "directory"

    def _is_file(self, *parts: str) -> bool:
        try:
            return bool(self._fs.info(self._path(*parts), **patience(self._fs, _PATIENCE_S))["type"] == "file")
        except FileNotFoundError:
            return False

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turns whatever a file system raises into a ModelError, so that a store out of reach stops no worker."""
        self._fs.invalidate_cache()
        try:
            yield
        except ModelError:
            raise
        except FileNotFoundError as error:
            raise _MissingError(f"{what}: the model store {self.url} hasn't got {error}") from error
        except Exception as error:
            why = f"no answer within {_PATIENCE_S} s" if isinstance(error, FSTimeoutError) else repr(error)
            raise StoreAwayError(f"{what}: the model store {self.url} can't be used: {why}") from error


class _MissingError(ModelError):
    """A file isn't in the store, though the store can be read."""


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
