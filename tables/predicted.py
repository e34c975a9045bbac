"""(session, event) -> the answers that wait to be judged, and feedback that waits for its answer. Put by scoring and by
feedback, in the session's partition; gone once the horizon of each answer is over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from engine.batch import Slice
from engine.late import iso
from engine.schema import HEADER
from engine.store import PartitionStore
from engine.table import RESERVED, Items, KeyValueShard, Shard, Table, Values
from models.joining import Fate
from models.remembered import Asked, Remembered

LEAST: Final = 1000
MOST: Final = 20_000
"""Values that are looked at for their end with a checkpoint: twice as many as came, so that what is over is never more
than half of what isn't."""
_ASKED: Final = RESERVED + b"asked/"


class PredictedShard(KeyValueShard):
    """Values, and the versions that their answers are of: those are kept for ever, and moved with every partition."""

    def __init__(self, name: str, store: PartitionStore) -> None:
        super().__init__(name, store)
        self.known: dict[str, Asked] = dict(_known(store, name))
        """Reference -> version."""
        self._new: dict[bytes, bytes | None] = {}
        """Versions for the next commit. Not a slice's: what knows them may be kept where the slice is given up."""
        self._cursor = b""
        self._came = 0

    def know(self, reference: str, asked: Asked) -> None:
        """Answers may name it from now on."""
        if reference not in self.known:
            self.known[reference] = asked
            self._new[_ASKED + reference.encode()] = msgspec.json.encode(asked)
            self.touched = True

    def settle(self, change: Values) -> None:
        self._came += len(change)
        super().settle(change)

    def take(self) -> Items:
        new, self._new = self._new, {}
        self._dirty.update(new)
        return super().take()

    def over(self, watermark: int) -> dict[bytes, bytes]:
        """A portion of the values whose time was over by then; the next call goes on from there."""
        portion = min(MOST, max(LEAST, 2 * self._came))
        self._came = 0
        found = list(islice(self._store.scan(self.name, self._cursor), portion))
        self._cursor = found[-1][0] + b"\0" if len(found) == portion else b""
        over = {key: raw for key, raw in found if due(raw, key) < watermark}
        for key in over.keys() & self._recent():
            if (raw := self.finished(key)) is not None and due(raw, key) < watermark:
                over[key] = raw
            else:
                del over[key]
        return over


class Predicted(Table[str, Remembered]):
    """SESSION/EVENT -> answers that wait for labels, and feedback that waits for an answer. A / in a session is %2F."""

    name = "predicted"
    short = True

    def __init__(self) -> None:
        super().__init__()
        self.fates: Counter[Fate] = Counter()
        """What became of feedback on this worker."""

    def shard(self, store: PartitionStore) -> Shard:
        return PredictedShard(self.name, store)

    def here(self, s: Slice[Any]) -> PredictedShard:
        """The part of a slice's partition."""
        return cast(PredictedShard, s.task.shard(self.name))

    def read(self, shard: PredictedShard, keys: Sequence[bytes]) -> dict[bytes, Remembered]:
        """What is known of these, without those of which nothing is."""
        found = zip(keys, shard.get_many(keys), strict=True)
        return {key: self.decode(raw, key) for key, raw in found if raw is not None}

    def write(self, shard: PredictedShard, s: Slice[Any], values: Mapping[bytes, Remembered]) -> None:
        """On behalf of a slice."""
        if values:
            shard.put_many(s, {key: self.encode(value) for key, value in values.items()})

    def session(self, key: str) -> str:
        return unquote(key.partition("/")[0])

    def keys_of(self, session: str, shard: Shard) -> list[bytes]:
        return shard.keys_with(begin_of(session.encode()))

    def expire(self, shard: Shard, watermark: int, busy: Iterable[Slice[Any]]) -> bool:
        """Forgets a portion of what nothing can be said of any more."""
        predicted = cast(PredictedShard, shard)
        over = predicted.over(watermark)
        waited = [self.decode(raw, key) for key, raw in over.items() if _unanswered(raw)]
        self.fates[Fate.FORGOTTEN] += sum(len(value.told) for value in waited)
        return predicted.forget(over)

    def describe(self, shard: Shard, raw: bytes) -> dict[str, Any]:
        """For people: who answered what and when, what was said of it, and until when that counts."""
        value, known = self.decode(raw), cast(PredictedShard, shard).known
        answers = [
            {
                "version": asked.identity,
                "role": asked.role,
                "ts": iso(one.ts),
                "source": f"observations/{one.partition}/{one.offset}",
                "scores": dict(zip(asked.labels or ("value",), one.matrix(len(asked.labels)).tolist(), strict=True)),
            }
            for one in value.answers
            if (asked := known.get(one.asked)) is not None
        ]
        told = [{**_said(one), "ts": iso(one.ts)} for one in value.told]
        return {"until": iso(value.due), "answers": answers, "feedback": told}


def _said(told: Any) -> dict[str, Any]:
    shown = {name: getattr(told, name) for name in ("id", "type", "label", "score", "model")}
    return {name: value for name, value in shown.items() if value is not None}


def begin_of(session: bytes) -> bytes:
    """How the keys of a session's events begin. session: as UTF-8."""
    if b"/" in session or b"%" in session:
        return quote(session, safe="").encode() + b"/"
    return session + b"/"


def due(raw: bytes, key: bytes = b"") -> float:
    """The end of a stored value's time, ms since epoch, without decoding the rest of it; what is kept of versions has
    none."""
    return math.inf if key.startswith(RESERVED) else int(raw[HEADER + 1 : raw.index(b",", HEADER)])


def _unanswered(raw: bytes) -> bool:
    return raw.startswith(b",[]", raw.index(b",", HEADER))


def _known(store: PartitionStore, table: str) -> Iterator[tuple[str, Asked]]:
    for key, raw in store.scan(table, _ASKED):
        if not key.startswith(_ASKED):
            return
        yield key[len(_ASKED) :].decode(), msgspec.json.decode(raw, type=Asked)


predicted = Predicted()
