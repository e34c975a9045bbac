"""How far a partition's replay is: what /metrics says while it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from core.settings import Settings
from engine import changelog
from engine.changelog import Changelog, Marker
from engine.store import PartitionStore, RocksMemory


class Written:
    """Records of a changelog that were written in one piece; compaction has left one of them."""

    def __init__(self, first: int, next_offset: int) -> None:
        self.next_offset = next_offset
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        yield SimpleNamespace(offset=self._first, key=b"k%d" % self._first, value=b"v")


class Consumer:
    """Sees a changelog of 1,000 offsets."""

    def assign(self, partitions: Any) -> None:
        """Nothing to do."""

    def pause(self, *partitions: Any) -> None:
        """Nothing to do."""

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 1000)

    async def position(self, tp: TopicPartition) -> int:
        return 1000


async def test_a_replay_tells_how_much_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = SimpleNamespace(settings=Settings(), transactional=True)
    replay = Changelog(connection, 0, ["notes"])
    left = []

    async def fetches(*_: Any) -> AsyncIterator[list[Any]]:
        for answer in ([Written(0, 100), Written(100, 400)], [Written(900, 1000)]):
            yield answer
            left.append(replay.left)

    async def newest_marker(*_: Any) -> Marker:
        return Marker("one life", {}, -1)

    monkeypatch.setattr(changelog, "fetches", fetches)
    monkeypatch.setattr(Changelog, "newest_marker", newest_marker)
    store = PartitionStore(tmp_path / "0", ["notes"], RocksMemory())
    try:
        assert replay.left == 0
        assert await replay.catch_up(cast(Any, Consumer()), store) == 3
        assert left == [600, 0]
        assert store.sizes()["notes"][0] == 3
    finally:
        store.close()
