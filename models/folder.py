"""One model version as a folder of files, checked byte for byte before anything in it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from core.errors import ManifestError, TamperedError
from models.external import external_files
from models.manifest import MANIFEST, MODEL, Manifest
from models.precision import FP32, named


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A verified version on this machine. Make it with ModelFolder.open."""

    path: Path
    manifest: Manifest
    sha256: str
    """Of the manifest, which holds the hash of every other file: equal means the same version, byte for byte."""

    @property
    def onnx(self) -> Path:
        """The model in full precision."""
        return self.path / MODEL

    def model(self, precision: str = FP32) -> Path:
        """The model that ONNX Runtime loads. Raises ModelError for a precision that isn't there."""
        return self.path / named(precision, self.manifest.offered, self.identity).file

    def weights(self, precision: str = FP32) -> int:
        """Bytes of a precision's file and of those that it reads: its tensors, and little else."""
        model = self.model(precision)
        return sum(file.stat().st_size for file in (model, *(model.parent / one for one in external_files(model))))

    def key(self, precision: str = FP32) -> str:
        """The same answers come from the same key alone: its sha256, and the precision unless it is fp32."""
        return self.sha256 if precision == FP32 else f"{self.sha256}/{precision}"

    @property
    def identity(self) -> str:
        """As logs and errors name it: name@version."""
        return self.manifest.identity

    @classmethod
    def open(cls, path: Path, name: str, version: str) -> Self:
        """Reads the manifest and checks every file against it.

        name, version: what the folder is supposed to be. Raises ManifestError when the manifest can't be read or is
        another version's, or a file is missing or not listed; TamperedError when a file has another sha256, a path
        or a link leaves the folder, or the ONNX graph reads a file that isn't listed.
        """
        who = f"{name}@{version}"
        manifest = Manifest.read(path / MANIFEST, f"{who}: {MANIFEST}")
        check_listing(manifest, name, version, _files(path, who))
        for file, expected in manifest.files.items():
            if (got := sha256(path / file)) != expected:
                raise TamperedError(f"{who}: {file} has sha256 {got}, but {MANIFEST} says {expected}")
        for precision in manifest.offered.values():
            _check_external(path, precision.file, manifest, who)
        return cls(path, manifest, sha256(path / MANIFEST))


def hashes(path: Path) -> dict[str, str]:
    """What a manifest's `files` must be for this folder: path -> sha256 of every file but manifest.json.

    Raises TamperedError for a link that leaves the folder.
    """
    return {file: sha256(path / file) for file in sorted(_files(path, path.name))}


def sha256(file: Path) -> str:
    """A file's sha256 in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_listing(manifest: Manifest, name: str, version: str, files: set[str]) -> None:
    """Compares a manifest with where it lies and with the files beside it, by name alone.

    Raises TamperedError for listed paths that leave the folder, ManifestError for whatever else differs.
    """
    who = f"{name}@{version}"
    if (manifest.name, manifest.version) != (name, version):
        raise ManifestError(f"{who}: {MANIFEST} is that of {manifest.identity}; the folder must be NAME/VERSION")
    for file in manifest.files:
        if not plain(file):
            raise TamperedError(f"{who}: {MANIFEST} lists {file!r}, which leaves the folder")
    if missing := sorted(manifest.files.keys() - files):
        raise ManifestError(f"{who}: {', '.join(missing)} is listed in {MANIFEST}, but missing")
    if unlisted := sorted(files - manifest.files.keys()):
        raise ManifestError(f"{who}: {', '.join(unlisted)} isn't listed in {MANIFEST}; it names every other file")


def plain(file: str) -> bool:
    """Whether a path stays inside its folder, on any system, and has one spelling only."""
    path = PurePosixPath(file)
    return (
        bool(file)
        and not path.is_absolute()
        and ".." not in path.parts
        and str(path) == file
        and not any(sign in file for sign in "\\:\0")
    )


def _files(path: Path, who: str) -> set[str]:
    return {file.relative_to(path).as_posix() for file in _inside(path, path, path.resolve(), who)} - {MANIFEST}


def _inside(folder: Path, top: Path, home: Path, who: str) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_symlink() and not entry.resolve().is_relative_to(home):
            raise TamperedError(f"{who}: {entry.relative_to(top)} is a link that leaves the folder")
        if entry.is_dir() and not entry.is_symlink():
            yield from _inside(entry, top, home, who)
        elif entry.is_file():
            yield entry
        else:
            raise ManifestError(f"{who}: {entry.relative_to(top)} is neither a file nor a folder of its own")


def _check_external(path: Path, model: str, manifest: Manifest, who: str) -> None:
    inside = PurePosixPath(model).parent
    try:
        locations = external_files(path / model)
    except ManifestError as error:
        raise ManifestError(f"{who}: {error}") from error
    for location in sorted(locations):
        if not plain(location):
            raise TamperedError(f"{who}: {model} reads {location!r}, which leaves the folder")
        if str(inside / location) not in manifest.files:
            raise TamperedError(f"{who}: {model} reads {location!r}, which {MANIFEST} doesn't list")
