"""A file of state: a zip of one part per table and partition, and a manifest that says what they are.

    manifest.json                  Manifest: application, topics, partitions, positions, watermarks, counts, sha256
    sessions/00003.msgpack         the values of a table in a partition, by key

A part is a stream of MessagePack objects: `bin 32`, each of which holds an array [key, value, key, value, ...] of
binaries. Keys ascend through the whole part. Counts and hashes are those of the part before it is compressed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Final, Self
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import msgspec
from msgspec import Meta

from core.errors import BackupError, DamagedFileError
from engine.schema import FORMAT as FORMAT_OF_VALUES

FORMAT: Final = "homunculus-state"
VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_BIN32: Final = 0xC6
_HEAD: Final = 5
_PAIRS: Final = 1000
_BYTES: Final = 1 << 20
"""A chunk ends with the pair that makes it this large."""
_LARGEST: Final = 1 << 28
"""Bytes of a chunk that nothing writes: a wrong length must not cost the machine's memory."""
_LEVEL: Final = 1
"""Of compression, which is a third of what an export costs even so."""

_DAMAGE: Final = (BadZipFile, KeyError, zlib.error, EOFError, RuntimeError, msgspec.MsgspecError)
"""What is raised about bytes that are wrong; RuntimeError among them where they ask for a password."""

Pair = tuple[bytes, bytes]
Count = Annotated[int, Meta(ge=0)]
Version = Annotated[int, Meta(ge=1)]
Watermark = Annotated[int, Meta(ge=-1, le=253_402_300_799_999)]
"""ms since epoch, to the end of year 9999; -1: none yet."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


class Part(msgspec.Struct, frozen=True):
    """What a part must be."""

    records: Count
    bytes: Count
    sha256: str


class PartitionState(msgspec.Struct, frozen=True):
    """One partition as of one commit."""

    partition: Count
    positions: dict[str, Count]
    """Source topic -> next offset: where a worker goes on that starts from this state."""
    unread: dict[str, Count]
    """Source topic -> offsets from there to its end, as of when the file was made; 0 where none holds a record."""
    watermark: Watermark
    incarnation: str
    """Which life of the changelogs it was read from, and up to where: what it can be compared with."""
    changelogs: dict[str, Count]
    tables: dict[str, Part]
    versions: dict[str, Version] = {}
    """Table -> the newest version of its values: a release that doesn't know it must leave them alone."""
    format: Version = FORMAT_OF_VALUES
    """Of values' headers."""


class Manifest(msgspec.Struct, frozen=True):
    """What a file holds."""

    application: str
    topic_prefix: str
    created: str
    """ISO 8601, UTC."""
    tables: list[str]
    state: list[PartitionState]
    format: str = FORMAT
    version: int = VERSION

    @property
    def partitions(self) -> int:
        """How many partitions the application had."""
        return len(self.state)

    @property
    def records(self) -> int:
        """Values of all tables."""
        return sum(part.records for one in self.state for part in one.tables.values())


class ArchiveWriter:
    """Writes a file front to back. It is no file of state before close()."""

    def __init__(self, path: Path) -> None:
        self._zip = ZipFile(path, "x", ZIP_DEFLATED, compresslevel=_LEVEL)

    def part(self, table: str, partition: int, pairs: Iterable[Pair]) -> Part:
        """Writes the values of a table, in the order of their keys."""
        sha256, records, size = hashlib.sha256(), 0, 0
        with self._zip.open(_name(table, partition), "w", force_zip64=True) as member:
            for chunk in _chunks(pairs):
                raw = _encode(chunk)
                head = bytes([_BIN32]) + len(raw).to_bytes(4, "big")
                for piece in (head, raw):
                    sha256.update(piece)
                    member.write(piece)
                records += len(chunk) // 2
                size += len(head) + len(raw)
        return Part(records, size, sha256.hexdigest())

    def close(self, manifest: Manifest) -> None:
        """Ends it with its manifest."""
        self._zip.writestr(_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self._zip.close()

    def abandon(self) -> None:
        """Lets go of what is no file of state."""
        if (file := self._zip.fp) is not None:
            self._zip.fp = None  # close() would write a table of contents, perhaps to a full disk
            file.close()


class Archive:
    """Reads a file. Raises DamagedFileError wherever it isn't what its manifest says."""

    def __init__(self, path: Path) -> None:
        """Raises BackupError when there is no such file, or it is of another kind."""
        self.path = path
        try:
            self._zip = ZipFile(path)
            raw = self._zip.read(_MANIFEST)
        except OSError as error:
            raise BackupError(f"{path} can't be read: {error.strerror or error}") from error
        except _DAMAGE as error:
            raise DamagedFileError(f"{path} is no file of state, or is cut short: {error}") from error
        self.manifest = self._understood(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def _understood(self, raw: bytes) -> Manifest:
        try:
            kind = msgspec.json.decode(raw, type=dict[str, object])
            if (kind.get("format"), kind.get("version")) != (FORMAT, VERSION):
                raise BackupError(
                    f"{self.path} is {kind.get('format')!r}, version {kind.get('version')!r}; this release reads "
                    f"{FORMAT!r}, version {VERSION}"
                )
            manifest = msgspec.convert(kind, Manifest)
        except msgspec.MsgspecError as error:
            raise DamagedFileError(f"{self.path}: {_MANIFEST} can't be understood ({error})") from error
        if [one.partition for one in manifest.state] != list(range(manifest.partitions)) or not manifest.state:
            raise DamagedFileError(f"{self.path}: {_MANIFEST} doesn't have each partition once")
        if any(one.tables.keys() != set(manifest.tables) for one in manifest.state):
            raise DamagedFileError(f"{self.path}: {_MANIFEST} doesn't have each table in each partition")
        if not _is_moment(manifest.created):
            raise DamagedFileError(f"{self.path}: {_MANIFEST} says that it was created {manifest.created!r}")
        return manifest

    def pairs(self, table: str, partition: int) -> Iterator[Pair]:
        """Keys and values of a table, in the order of their keys; none where the file has nothing of it."""
        for chunk in self.chunks(table, partition):
            yield from zip(chunk[::2], chunk[1::2], strict=True)

    def chunks(self, table: str, partition: int) -> Iterator[list[bytes]]:
        """The same as [key, value, key, value, ...], some at a time."""
        part = self.manifest.state[partition].tables.get(table)
        if part is None:
            return
        name = _name(table, partition)
        sha256, records, size, last = hashlib.sha256(), 0, 0, b""
        try:
            with self._zip.open(name) as member:
                while head := _exactly(member, _HEAD, name):
                    if head[0] != _BIN32:
                        raise DamagedFileError(f"{self.path}: {name} is no stream of chunks")
                    raw = _exactly(member, int.from_bytes(head[1:], "big"), name)
                    sha256.update(head)
                    sha256.update(raw)
                    chunk = _decode(raw)
                    keys = chunk[::2]
                    if len(chunk) % 2 or not keys or keys != sorted(set(keys)) or (records and keys[0] <= last):
                        raise DamagedFileError(f"{self.path}: the keys of {name} don't ascend")
                    last = keys[-1]
                    records += len(keys)
                    size += _HEAD + len(raw)
                    yield chunk
        except _DAMAGE as error:
            raise DamagedFileError(f"{self.path}: {name} is damaged ({error})") from error
        except OSError as error:
            raise BackupError(f"{self.path} can't be read: {error.strerror or error}") from error
        found = Part(records, size, sha256.hexdigest())
        if found != part:
            raise DamagedFileError(f"{self.path}: {name} is {found}, the manifest says {part}")


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _exactly(member: IO[bytes], size: int, name: str) -> bytes:
    if size > _LARGEST:
        raise DamagedFileError(f"{name} claims a chunk of {size:,} bytes")
    raw = member.read(size)
    if raw and len(raw) < size:
        raise DamagedFileError(f"{name} is cut short")
    return raw


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for key, value in pairs:
        chunk += (key, value)
        size += len(key) + len(value)
        if size >= _BYTES or len(chunk) >= 2 * _PAIRS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _name(table: str, partition: int) -> str:
    return f"{table}/{partition:05}.msgpack"
