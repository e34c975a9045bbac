"""The wire between workers and a broker, which a test can cut, hold up and slow down."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from engine.embedded import HOST

CHUNK: Final = 4096
"""Bytes that pass at a time."""
UP_S: Final = 10.0
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close is a reset."""


class _Link:
    """One connection, from a worker to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.ends = [writer]
        self.flows = asyncio.Event()

    def reset(self) -> None:
        """Both sides see a reset."""
        for end in self.ends:
            with suppress(OSError):
                if (connected := end.get_extra_info("socket")) is not None:  # else it has closed by itself
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


class Proxy:
    """Listens on a port and passes everything on to another, from a thread of its own."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._links: set[_Link] = set()
        self._lost: set[_Link] = set()
        self._holding = False
        self._delay_s, self._paces = 0.0, (float("inf"), float("inf"))
        """And the bytes a second of requests and of answers."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._on_loop(lambda: [task.cancel() for task in self._tasks])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(UP_S)
        self._loop.close()

    # -- faults -------------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Every connection is reset, and no new one is taken."""

        def refuse() -> None:
            if self._server is not None:
                self._server.close()
            for link in (*self._links, *self._lost):
                link.reset()

        self._on_loop(refuse)

    def listen(self) -> None:
        """Takes connections."""
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, HOST, self.port, limit=2 * CHUNK), self._loop
        )
        self._server = started.result(UP_S)

    def hold(self) -> None:
        """Nothing moves any more; connections are taken, and hear nothing."""

        def hold() -> None:
            self._holding = True
            for link in self._links:
                link.flows.clear()

        self._on_loop(hold)

    def release(self) -> None:
        """What was held back arrives now, and everything moves again."""

        def release() -> None:
            self._holding = False
            for link in self._links:
                link.flows.set()

        self._on_loop(release)

    def forget(self) -> None:
        """The connections of this moment are dead, and neither side is told; new ones work."""

        def forget() -> None:
            for link in self._links:
                link.flows.clear()
            self._lost |= self._links
            self._links.clear()

        self._on_loop(forget)

    def slow(self, delay_s: float = 0.0, bytes_per_s: float = float("inf"), answers_per_s: float | None = None) -> None:
        """Each chunk waits, and each direction of a connection has no more bytes a second (answers_per_s: where that of
        answers has others); without arguments it is fast again."""
        self._delay_s = delay_s
        self._paces = bytes_per_s, bytes_per_s if answers_per_s is None else answers_per_s

    def cut(self, chance: random.Random) -> None:
        """One connection is reset."""

        def cut() -> None:
            if self._links:
                chance.choice(sorted(self._links, key=id)).reset()

        self._on_loop(cut)

    # -- passing on ---------------------------------------------------------------------------------------------------

    def _on_loop(self, do: Callable[[], object]) -> None:
        async def call() -> None:
            do()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(UP_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = _Link(reader, writer)
        self._links.add(link)
        if not self._holding:
            link.flows.set()
        try:
            await link.flows.wait()
            answers, upstream = await asyncio.open_connection(HOST, self._target, limit=2 * CHUNK)
            link.ends.append(upstream)
            ways = enumerate(((reader, upstream), (answers, writer)))
            pumps = [asyncio.create_task(self._pump(link, number, *way)) for number, way in ways]
            self._tasks.update(pumps)
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            self._tasks.difference_update(pumps)
        except OSError:
            pass  # the broker is away
        finally:
            link.reset()
            self._links.discard(link)
            self._lost.discard(link)
            self._tasks.discard(task)

    async def _pump(self, link: _Link, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                wait = self._delay_s + len(data) / self._paces[way]
                if wait:
                    await asyncio.sleep(wait)
                await link.flows.wait()
                writer.write(data)
                await writer.drain()
