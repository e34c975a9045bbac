"""A stream that gathers: what comes within a time is one batch, and nothing is lost by waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from core.topics import SCORES
from engine.agent import Stream
from engine.batch import Slice


class Poller:
    """Polls as a test gives them."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[list[Slice[bytes]]] = asyncio.Queue()
        self._meters = SimpleNamespace(begun=lambda slices: None, worked=lambda batch: None)
        self._engine = SimpleNamespace(meters=self._meters, traces=None)

    def give(self, partition: int, offset: int) -> None:
        """One record."""
        task: Any = SimpleNamespace(engine=self._engine, partition=partition, epoch=0, advance=lambda topic: None)
        record: Any = SimpleNamespace(offset=offset, timestamp=5, key=b"m@1", value=b"x", headers=[])
        self.queue.put_nowait([Slice(task, "scores", [record])])

    async def polls(self) -> AsyncIterator[list[Slice[bytes]]]:
        while True:
            yield await self.queue.get()

    def stream(self, seconds: float) -> Stream[bytes]:
        return Stream(cast(Any, self._engine), SCORES, self.polls()).gathered(seconds)


async def test_what_comes_within_the_time_is_one_batch_in_order() -> None:
    poller = Poller()
    stream = poller.stream(0.2)
    for partition, offset in ((0, 1), (1, 7), (0, 2)):
        poller.give(partition, offset)
    batch = await anext(stream)
    assert {n: [s.first for s in slices] for n, slices in batch.by_partition().items()} == {0: [1, 2], 1: [7]}
    assert all(not s.done for s in batch.slices)
    poller.give(0, 3)
    following = await anext(stream)
    assert [s.first for s in following.slices] == [3]
    assert all(s.done for s in batch.slices), "asking for the next batch finishes the one before"


async def test_a_poll_that_comes_after_the_time_is_in_the_next_batch() -> None:
    poller = Poller()
    stream = poller.stream(0.05)
    poller.give(0, 1)
    assert [s.first for s in (await anext(stream)).slices] == [1]
    waiting = asyncio.ensure_future(anext(stream))
    poller.give(0, 2)
    assert [s.first for s in (await waiting).slices] == [2]


async def test_a_stream_that_ends_while_it_gathers_leaves_nothing_running() -> None:
    poller = Poller()
    stream = poller.stream(10)
    poller.give(0, 1)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
