"""Outputs that don't wait for the commit of their events: the commit waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from core.errors import FencedError, TaskError
from engine.outputs import Builders, Outbox
from engine.producer import Producer

if TYPE_CHECKING:
    from engine.batch import Staged


class EarlyOutbox(Outbox):
    """Sends by itself: one request in flight, the next takes all since. A task that opens anew gets a new one, so what
    ends afterwards confirms nothing of the new life."""

    def __init__(
        self,
        producer: Producer,
        failed: Callable[[TaskError | FencedError], Awaitable[None]],
        sent: Callable[[Builders], None],
    ) -> None:
        """failed: told when the broker did not take a request. What was in it is lost here, and other tasks use the
        same producer: all of them must open anew. sent: told what it took."""
        super().__init__(producer.new_builder)
        self.producer = producer
        """It sends by."""
        self._failed = failed
        self._tell = sent
        self._sent = 0
        self._closed: str | None = None
        self._moved = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    def add(self, staged: Staged) -> None:
        super().add(staged)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self and self._closed is None:
                staged, taken = self.staged, self.take()
                await self.producer.send(taken)
                self._tell(taken)
                self._sent = staged
                self._moved.set()
        except (TaskError, FencedError) as error:
            if self._closed is None:
                await self._failed(error)
        finally:
            self._sender = None

    async def until_sent(self, number: int) -> None:
        """Waits until so many of the outputs that were ever staged have left. Raises TaskError when they can't. One
        waits at a time: the commit."""
        while self._sent < number:
            if self._closed is not None:
                raise TaskError(self._closed)
            self._moved.clear()
            await self._moved.wait()

    def close(self, reason: str) -> None:
        """Sends nothing more; who waits is told."""
        self._closed = reason
        self._moved.set()
