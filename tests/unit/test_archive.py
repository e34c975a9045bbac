"""A file of state gives back what was put into it, or says that it is damaged; it never gives back something else."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BackupError, DamagedFileError
from engine import archive as module
from engine.archive import Archive, ArchiveWriter, Manifest, Part, PartitionState
from engine.backup import both, check

CREATED = "2026-01-31T12:00:00+00:00"
Values = Mapping[bytes, bytes]
State = list[dict[str, dict[bytes, bytes]]]

values = st.dictionaries(st.binary(max_size=40), st.binary(max_size=40), max_size=30)
states = st.lists(st.fixed_dictionaries({"sessions": values, "timers": values}), min_size=1, max_size=4)


def write(path: Path, state: State) -> Manifest:
    writer = ArchiveWriter(path)
    partitions = []
    for number, tables in enumerate(state):
        parts = {table: writer.part(table, number, sorted(items.items())) for table, items in tables.items()}
        partitions.append(
            PartitionState(number, {"in": 10 * number}, {"in": 0}, number - 1, "life", {"sessions": 7}, parts)
        )
    manifest = Manifest("app", "prefix-", CREATED, ["sessions", "timers"], partitions)
    writer.close(manifest)
    return manifest


def of_one(part: Part) -> Manifest:
    """The manifest of a table in one partition."""
    return Manifest("a", "", CREATED, ["sessions"], [PartitionState(0, {}, {}, -1, "", {}, {"sessions": part})])


def read(path: Path) -> State:
    with Archive(path) as archive:
        check(archive, lambda line: None)
        manifest = archive.manifest
        return [{t: dict(archive.pairs(t, one.partition)) for t in manifest.tables} for one in manifest.state]


@given(state=states, pairs=st.integers(1, 5), size=st.integers(1, 60))
def test_what_was_put_in_comes_out_whatever_the_size_of_chunks(state: State, pairs: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAIRS", pairs)
        patch.setattr(module, "_BYTES", size)
        path = Path(folder, "file")
        manifest = write(path, state)
        assert read(path) == state
        with Archive(path) as archive:
            assert archive.manifest == manifest
        assert manifest.records == sum(len(items) for tables in state for items in tables.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    chance = random.Random(3)
    state = [{t: {chance.randbytes(8): chance.randbytes(30) for _ in range(50)} for t in ("sessions", "timers")}] * 2
    path = tmp_path_factory.mktemp("archive") / "whole"
    write(path, state)
    return path, state


@given(data=st.data())
def test_a_byte_that_is_wrong_or_an_end_that_is_missing_never_changes_what_comes_out(
    whole: tuple[Path, State], data: st.DataObject
) -> None:
    path, state = whole
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        del raw[at:]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(raw)
        try:
            assert read(Path(folder, "file")) == state
        except BackupError:
            return


def test_keys_that_do_not_ascend_are_damage(tmp_path: Path) -> None:
    for number, pairs in enumerate(([(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")])):
        writer = ArchiveWriter(tmp_path / str(number))
        part = writer.part("sessions", 0, pairs)
        writer.close(of_one(part))
        with pytest.raises(DamagedFileError, match="ascend"):
            read(tmp_path / str(number))


def test_a_part_that_is_not_what_the_manifest_says_is_damage(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "file")
    part = writer.part("sessions", 0, [(b"a", b"1")])
    wrong = msgspec.structs.replace(part, sha256="0" * 64)
    writer.close(of_one(wrong))
    with pytest.raises(DamagedFileError, match="the manifest says"):
        read(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"created": "yesterday"}, "created 'yesterday'"),
        ({"created": "2026-01-31T12:00:00"}, "created"),
        ({"tables": ["sessions", "timers"]}, "each table in each partition"),
        ({"state": []}, "each partition once"),
        ({"positions": {"in": -1}}, "positions"),
        ({"watermark": 10**18}, "watermark"),
        ({"watermark": "soon"}, "watermark"),
        ({"versions": {"sessions": 0}}, "versions"),
        ({"partition": 7}, "each partition once"),
    ],
)
def test_a_manifest_that_says_what_can_not_be_is_damage(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    writer = ArchiveWriter(tmp_path / "file")
    part = writer.part("sessions", 0, [(b"a", b"1")])
    manifest = of_one(part)
    document = msgspec.to_builtins(manifest)
    (document if change.keys() & document.keys() else document["state"][0]).update(change)
    writer._zip.writestr("manifest.json", msgspec.json.encode(document))
    writer._zip.close()
    with pytest.raises(DamagedFileError, match=told):
        Archive(tmp_path / "file")


def test_a_chunk_that_claims_to_be_huge_is_damage_and_not_read(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "file")
    part = writer.part("sessions", 0, [(b"a", b"1")])
    manifest = of_one(part)
    with ZipFile(tmp_path / "other", "x") as other:
        other.writestr("sessions/00000.msgpack", b"\xc6\xff\xff\xff\xff" + bytes(1000))
        other.writestr("manifest.json", msgspec.json.encode(manifest))
    with pytest.raises(DamagedFileError, match="4,294,967,295 bytes"):
        read(tmp_path / "other")


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "file")
    writer.close(Manifest("a", "", "", [], [], version=2))
    with pytest.raises(BackupError, match="version 2; this release reads"):
        Archive(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + bytes(100)])
def test_another_file_is_no_file_of_state(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DamagedFileError, match="no file of state"):
        Archive(tmp_path / "file")
    with pytest.raises(BackupError, match="can't be read"):
        Archive(tmp_path / "none")
    with pytest.raises(BackupError, match="can't be read"):
        Archive(tmp_path)


def test_a_file_that_was_given_up_is_no_file_of_state(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "file")
    writer.part("sessions", 0, [(b"a", b"1")])
    writer.abandon()
    with pytest.raises(DamagedFileError):
        Archive(tmp_path / "file")
    shutil.rmtree(tmp_path)


@given(ours=values, theirs=values)
def test_two_streams_are_compared_key_by_key(ours: Values, theirs: Values) -> None:
    found = list(both(iter(sorted(ours.items())), iter(sorted(theirs.items()))))
    assert found == [(key, ours.get(key), theirs.get(key)) for key in sorted({*ours, *theirs})]
