"""Which version a stored value has, and how an older one becomes one of today: one way for every table.

A value begins with two bytes, in RocksDB, in changelogs and in copies: flags, then its table's version. No flag is
used yet. EXPIRES is kept for values with a time to live: the 8 bytes behind the header are then when they go (ms since
epoch, big-endian). A flag that isn't known is refused like a version that isn't.

The marker of each commit says how new the values of its partition are, so a release that doesn't know them is refused
when it opens the partition, before it has read or written one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.errors import MigrationError, NewerStateError, UsageError
from engine.batch import slice_at_work

if TYPE_CHECKING:
    from engine.store import PartitionStore

HEADER: Final = 2
"""Bytes before the payload: flags, version."""
EXPIRES: Final = 0x01
"""Flag of a value with a time to live. Not used yet."""
KNOWN_FLAGS: Final = 0
FORMAT: Final = 1
"""Of the header. A release whose values have flags that this one doesn't know writes a larger one into its markers."""
MOST: Final = 255
EXAMPLES: Final = 10_000
"""Values looked at for a key that an error can name."""

Migration = Callable[[Any], Any]
"""A value of one version as one of the next: both as JSON has them (a row: its columns by name)."""


class Schema:
    """The version of a table's values, and the way to it from each older one."""

    def __init__(self, table: str, migrations: Sequence[Migration] = ()) -> None:
        """migrations: the first makes version 2 of version 1, and so on: none can be missing."""
        if callable(migrations):
            raise UsageError(f"table {table!r}: migrations is a function; a tuple of one is written (function,)")
        if len(migrations) >= MOST:
            raise UsageError(f"table {table!r} has {len(migrations)} migrations; a version fits into a byte")
        self.table = table
        self.version = len(migrations) + 1
        self.mark = bytes([0, self.version])
        """How values of today begin."""
        self._migrations = tuple(migrations)

    def version_of(self, raw: bytes, key: bytes | None = None) -> int:
        """The version of a stored value. Raises NewerStateError for one that this release doesn't know."""
        flags, version = raw[0], raw[1]
        if flags & ~KNOWN_FLAGS or version > self.version:
            s = slice_at_work()
            raise NewerStateError(self.table, version, self.version, None if s is None else s.partition, key)
        return version

    def upgraded(
        self,
        version: int,
        value: Any,
        key: bytes | None = None,
        apply: Callable[[Migration, Any], Any] = lambda migration, value: migration(value),
    ) -> Any:
        """A value of an older version as one of today's. Raises MigrationError."""
        for step, migration in enumerate(self._migrations[version - 1 :], version):
            try:
                value = apply(migration, value)
            except Exception as error:  # whatever the user's function raises
                raise MigrationError(self.table, step, self.version, key, said(error)) from error
        return value


def refuse_newer(
    partition: int,
    newest: Mapping[str, int],
    written: int,
    schemas: Iterable[Schema],
    store: PartitionStore | None = None,
) -> None:
    """Raises NewerStateError where a partition has values that this release doesn't know.

    newest: table -> its newest version there, and written: the header's format, both as the last marker says. store:
    where to look for a key that an error can name.
    """
    for schema in schemas:
        found = newest.get(schema.table, 1)
        if found > schema.version:
            key = None if store is None else _example(store, schema.table, schema.version)
            raise NewerStateError(schema.table, found, schema.version, partition, key)
    if written > FORMAT:
        raise NewerStateError(None, written, FORMAT, partition, None)


def _example(store: PartitionStore, table: str, known: int) -> bytes | None:
    """A key with a newer value, where one is found soon."""
    items = islice(store.scan(table), EXAMPLES)
    return next((key for key, raw in items if not key.startswith(b"\xff") and raw[1] > known), None)


def said(error: Exception) -> str:
    """What went wrong, without the value: a library's own words where they hold none, else the class alone."""
    return f"{type(error).__name__}: {error}" if isinstance(error, msgspec.MsgspecError) else type(error).__name__
