"""State of so many partitions in another number of them: each value goes where the records of its session go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from core.errors import BackupError, HomunculusError
from engine.archive import Archive, Pair
from engine.publisher import partition_of
from engine.restore import Plan
from engine.snapshot import Tell
from engine.store import Meta, PartitionStore
from engine.table import RESERVED, Table

_NUMBER: Final = 4
"""Bytes of the new partition's number before each key."""


async def place_anew(
    archive: Archive, count: int, tables: Mapping[str, Table[Any, Any]], store: PartitionStore, tell: Tell
) -> dict[int, Plan]:
    """Plans for so many partitions. store: has room for all values of the file, and has to stay open meanwhile.

    Old partitions go on at their positions, new ones at their beginning: the caller knows that the old ones are read to
    their end. A watermark never goes back: what has fired can't be contradicted. Raises BackupError for a value whose
    place can't be known.
    """
    manifest = archive.manifest
    await asyncio.to_thread(store.begin_restore)
    for one in manifest.state:
        for name in one.tables:
            if name in tables:
                await asyncio.to_thread(_place, archive, one.partition, tables[name], count, store)
        tell(f"partition {one.partition} of {manifest.partitions}: its sessions are placed in {count} partitions")
    await asyncio.to_thread(store.restored, Meta())
    versions: dict[str, int] = {}
    for table, version in (item for one in manifest.state for item in one.versions.items()):
        versions[table] = max(version, versions.get(table, 1))
    newest = max(one.format for one in manifest.state)
    plans = {}
    for number in range(count):
        old = manifest.state[number] if number < manifest.partitions else None
        values = {name: _placed(store, name, number) for name in tables}
        positions = old.positions if old else {}
        plans[number] = Plan(positions, _watermark(archive, number, count), values, versions, newest)
    return plans


def _place(archive: Archive, partition: int, table: Table[Any, Any], count: int, store: PartitionStore) -> None:
    before = archive.manifest.partitions
    every = [number.to_bytes(_NUMBER, "big") for number in range(count)]
    for chunk in archive.chunks(table.name, partition):
        items: dict[bytes, bytes | None] = {}
        for key, value in zip(chunk[::2], chunk[1::2], strict=True):
            if key.startswith(RESERVED):  # what a table says of itself, which every partition needs
                items.update((prefix + key, value) for prefix in every)
                continue
            session = _session(table, key)
            if (place := partition_of(session, before)) != partition:
                raise BackupError(
                    f"{key.decode('utf-8', 'backslashreplace')[:80]!r} of table {table.name!r} is in partition "
                    f"{partition}, its session belongs to {place}: either the table's session() doesn't say "
                    "whose a key is, or a producer doesn't partition by murmur2 on the key. Nothing was changed"
                )
            items[every[partition_of(session, count)] + key] = value
        store.restore(table.name, items)


def _session(table: Table[Any, Any], key: bytes) -> bytes:
    try:
        session = table.session(table.decode_key(key))
    except HomunculusError as error:
        raise BackupError(f"table {table.name!r} can't be placed anew: {error}") from error
    return session.encode() if isinstance(session, str) else session


def _placed(store: PartitionStore, table: str, number: int) -> Iterator[Pair]:
    prefix = number.to_bytes(_NUMBER, "big")
    for key, value in store.scan(table, prefix):
        if not key.startswith(prefix):
            return
        yield key[_NUMBER:], value


def _watermark(archive: Archive, number: int, count: int) -> int:
    """The newest of the partitions that its sessions may come from."""
    state = archive.manifest.state
    if count % len(state) == 0:
        return state[number % len(state)].watermark
    return max(one.watermark for one in state)
