"""NAME@VERSION -> what its detectors know. Written by agents/drift.py, in the key's partition of `scores`."""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec

from engine.table import Shard, Table
from models.drift.monitor import Frozen, Monitor, State
from models.drift.ordering import OrderingState
from models.drift.performance import PerformanceDrift
from models.drift.singles import Singles
from models.drift.spec import Spec
from models.quality import Quality


class Watch(msgspec.Struct, array_like=True):
    """What changes with every batch of answers."""

    ordering: OrderingState
    monitor: State
    singles: Singles
    answered: int = 0
    """Revision of the deployment that the open drift was answered at, or told that it isn't."""
    told: bool = False
    """Whether somebody has heard that the open drift isn't answered."""


class Reference(msgspec.Struct, array_like=True):
    """What answers are measured against: changes once in a version's life, or when a person resets it."""

    spec: Spec
    frozen: Frozen


LARGE: Final = 1_024
"""Bytes from which on a value is compressed, to a third or a fifth: 20 us for 2 KB, 2 ms for 150, twice a second."""
_ZLIB: Final = b"\x78"
"""Its first byte; that of a msgpack array, which a small value is, is 0x90 at least."""
_read_watch = msgspec.msgpack.Decoder(Watch).decode
_read_reference = msgspec.msgpack.Decoder(Reference).decode
_pack = msgspec.msgpack.Encoder().encode


def packed(value: Watch | Reference) -> bytes:
    """As the tables hold it."""
    raw = _pack(value)
    return zlib.compress(raw, 1) if len(raw) >= LARGE else raw


def _watch(raw: bytes) -> Watch:
    return _read_watch(zlib.decompress(raw) if raw[:1] == _ZLIB else raw)


def _reference(raw: bytes) -> Reference:
    return _read_reference(zlib.decompress(raw) if raw[:1] == _ZLIB else raw)


class References(Table[str, bytes]):
    """Apart from what changes all the time: it is larger, and a commit writes whole values."""

    name = "references"
    of_sessions = False

    def reference(self, key: str) -> Reference | None:
        """A version's."""
        raw = self.get(key)
        return None if raw is None else _reference(raw)

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: what the version is held to."""
        found = _reference(self.decode(raw))
        return msgspec.to_builtins(found.spec)


class Watches(Table[str, bytes]):
    """The detectors' own state."""

    name = "drift"
    of_sessions = False

    def watch(self, key: str) -> tuple[bytes, Watch] | None:
        """A version's, with the bytes that it is stored as."""
        raw = self.get(key)
        return None if raw is None else (raw, _watch(raw))

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people, as /drift shows it. The reference stands in a table beside it."""
        return msgspec.to_builtins(_watch(self.decode(raw)).monitor)


references = References()
watches = Watches()


def conditions(watch: bytes) -> tuple[int, dict[str, int]]:
    """How many answers of a version were looked at, and how bad each condition is: 0 for well."""
    state = _watch(watches.decode(watch)).monitor
    return state.answers, {kind: condition.level for kind, condition in state.conditions().items()}


def quality(reference: bytes, watch: bytes) -> Quality | None:
    """How good a version's answers of the newest windows of event time were; None: no label has come."""
    seen = _watch(watches.decode(watch)).monitor.performance
    if seen is None or not seen.windows:
        return None
    spec = _reference(references.decode(reference)).spec
    return PerformanceDrift(spec.identity, len(spec.labels), spec.quality, seen).quality


def page(key: str, reference: bytes, watch: bytes) -> dict[str, Any]:
    """What people see of a version's detectors. reference, watch: as the tables hold them."""
    held, seen = _reference(references.decode(reference)), _watch(watches.decode(watch))
    return {"subject": key, **Monitor(held.spec, seen.monitor, held.frozen).page()}
