"""passages -> the library of every worker; documents without passages -> their owner makes them, beside the stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from agents.mirror import Mirror
from core.errors import DocumentError, HomunculusError
from core.events import Document
from core.topics import DEAD_LETTERS, DOCUMENTS, PASSAGES
from engine.app import App
from engine.codec import codec_of
from engine.feed import RecordFeed
from engine.table import KeyValueShard
from models.knowledge.knowledge import LOOK_S
from models.knowledge.library import Pending, Record
from models.knowledge.making import Making, failed
from models.knowledge.passage import estimate
from models.knowledge.record import Key, encode
from tables.documents import Kept, documents

log = logging.getLogger(__name__)

STEP: Final = 8
"""Passages that are embedded at a time, at most;"""
STEP_CHARACTERS: Final = 700
"""of so many characters, a full one: a document that comes meanwhile waits for no more."""
SHORT: Final = 1_200
"""Characters of a document that doesn't even wait for that, if it has come within the last"""
JUST_S: Final = 5.0
PATIENCE: Final = 2.0
"""Times as long as such a document took until there is another one that doesn't wait: they have the thread of
questions, which lets nobody pass."""
SMALL: Final = 20_000
"""Characters of a document that may overtake others."""
FAIRNESS: Final = 4
"""Every so many steps the oldest document has its turn, whatever is new, and however large it is."""
LOOK_AHEAD: Final = 8
"""Documents that are asked for at a time."""
IDLE_S: Final = 0.5
"""Until it looks again where nothing has told of work: partitions come and go, embedders too."""
MOST_WORKS: Final = 32
"""Documents that are begun and not finished."""
RETRY_S: Final = 1.0
UNREAD_S: Final = 10.0
"""What was published and hasn't been read back after that long is made again."""
MOST_STALE: Final = 50
INDEX: Final = 16
"""Passages that are added to a graph at a time: a search waits for 10 ms, and as long is between two steps."""
SAVED: Final = 10_000
"""Changes of a graph after which it is saved, beside the end."""
NOTE_S: Final = 600.0
"""Between two notes of an idle worker that its library stands for what is on the topic."""


async def keep(app: App) -> None:
    """Runs a Keeper as long as the worker runs."""
    keeper = Keeper(app)
    try:
        await keeper.run()
    finally:
        await app.engine.knowledge.close()


class _Work(NamedTuple):
    """A document that passages are made of."""

    pending: Pending
    making: Making
    embedder: str


class Keeper:
    """Reads `passages` into the library, and makes the passages of the partitions that this worker owns.

    What it makes is a function of the document and the embedder, so it needs no transaction: what is lost is made
    again, what comes twice is the same, and what comes from a former owner counts only while it is what is wanted.
    """

    def __init__(self, app: App) -> None:
        self._engine = app.engine
        self._knowledge = app.engine.knowledge
        self._publisher = app.publisher
        self._feed = RecordFeed(app.engine.connection, PASSAGES, self._start, self._take)
        self._works: dict[str, _Work] = {}
        self._busy: set[str] = set()
        """Documents that are being worked on at this moment: whoever else looks leaves them alone."""
        self._sent: dict[str, float] = {}
        """Documents whose passages were published and have not been read back -> when, monotonic."""
        self._wake = asyncio.Event()
        self._came = asyncio.Event()
        qdrant = app.engine.knowledge.qdrant
        self._mirror = None if qdrant is None else Mirror(app.engine, qdrant)
        self._turn = 0
        self._noted = time.monotonic()

    async def run(self) -> None:
        """For ever. Raises KafkaError when the broker doesn't let us."""
        await self._knowledge.open(self._engine.folder)
        all_ = (self._feed.run(), self._told(), self._make(), self._hurry(), self._look(), self._index())
        works = [asyncio.create_task(work) for work in all_]
        if self._mirror is not None:
            works.append(asyncio.create_task(self._mirror.run()))
        try:
            for ended in asyncio.as_completed(works):
                await ended
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _start(self, ends: Mapping[int, tuple[int, int]]) -> Mapping[int, int]:
        """From where on the topic is read: all of it where the library has more than there is, or what is no more."""
        library = self._knowledge.library
        lost = [p for p, at in library.positions.items() if p in ends and not ends[p][0] <= at <= ends[p][1] and at]
        if lost:
            log.warning("The topic %s isn't the one that this worker's library was made of: built anew", PASSAGES.name)
            await self._knowledge.write(library.forget)
        return dict(library.positions)

    async def _take(self, partition: int, records: Sequence[ConsumerRecord]) -> None:
        await self._knowledge.apply([Record(partition, one.offset, one.key or b"", one.value) for one in records])
        for record in records:
            try:
                key = Key.decode(record.key or b"")
            except ValueError:
                continue
            if key.part is not None:
                self._sent.pop(key.document, None)
        self._wake.set()
        self._came.set()
        if self._mirror is not None:
            self._mirror.wake.set()

    async def _told(self) -> None:
        await self._feed.caught_up.wait()
        self._knowledge.caught_up.set()

    async def _look(self) -> None:
        """For ever: metrics tell what was seen last."""
        while True:
            await self._knowledge.status()
            await asyncio.sleep(LOOK_S)

    async def _index(self) -> None:
        """For ever: what graphs lack. At half of the time, since nobody waits for it."""
        await self._feed.caught_up.wait()
        while True:
            began = time.monotonic()
            left = await self._knowledge.write(self._knowledge.library.index, INDEX)
            if not left:
                await self._knowledge.write(self._knowledge.library.save, SAVED)
            await asyncio.sleep(max(0.001, time.monotonic() - began) if left else IDLE_S)

    # -- making -------------------------------------------------------------------------------------------------------

    async def _make(self) -> None:
        await self._engine.ready.wait()  # else there would be no embedder yet, and everything be made twice
        await self._feed.caught_up.wait()
        while True:
            self._wake.clear()
            try:
                busy = await self._step()
            except (KafkaError, HomunculusError) as error:
                log.warning("Passages can't be made right now, and are tried again: %r", error)
                await asyncio.sleep(RETRY_S)
                continue
            if not busy:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _hurry(self) -> None:
        """Short documents that have just come, without a turn: the step of a load that is being computed takes its time
        where others have the processor."""
        await self._engine.ready.wait()
        await self._feed.caught_up.wait()
        while True:
            await self._came.wait()
            self._came.clear()
            began = time.monotonic()
            try:
                if not await self._short():
                    continue
            except (KafkaError, HomunculusError) as error:
                log.warning("A document's passages can't be made at once, and get their turn: %r", error)
            self._came.set()  # there may be more
            await asyncio.sleep(PATIENCE * (time.monotonic() - began))

    async def _short(self) -> bool:
        """The newest document, if it is one that doesn't wait. Returns whether it was."""
        owned, embedder = self._owned(), self._knowledge.embedder
        if not owned or not embedder:
            return False
        since = 1e3 * (time.time() - JUST_S)
        asked = LOOK_AHEAD + len(self._sent)
        for pending in await self._knowledge.pending(owned, embedder, asked, newest=True, most=SHORT):
            taken = pending.name in self._busy or pending.name in self._works or pending.name in self._sent
            if pending.at < since or taken:
                continue
            self._busy.add(pending.name)
            try:
                work = await self._begin(pending, embedder)
                while work is not None and not await self._advance(work, aside=False):
                    pass
            finally:
                self._busy.discard(pending.name)
            return True
        return False

    def _owned(self) -> set[int]:
        return {partition for partition, task in self._engine.tasks.items() if task.open}

    async def _step(self) -> bool:
        """A few passages of the document whose turn it is. Returns whether there was something to do."""
        owned, embedder, now = self._owned(), self._knowledge.embedder, time.monotonic()
        self._sent = {name: at for name, at in self._sent.items() if now - at < UNREAD_S}
        self._works = {
            name: work
            for name, work in self._works.items()
            if work.pending.partition in owned and work.embedder == embedder
        }
        self._turn += 1
        oldest = self._turn % FAIRNESS == 0
        name = await self._next(owned, embedder, newest=not oldest, most=1 << 60 if oldest else SMALL)
        if name is None:
            name = await self._next(owned, embedder, newest=False, most=1 << 60)
        self._knowledge.making = len(self._works)
        if name is None:
            return await self._sweep(owned)
        self._bound(name)
        self._busy.add(name)
        try:
            if await self._advance(self._works[name], aside=True):
                self._works.pop(name, None)
        finally:
            self._busy.discard(name)
        return True

    def _bound(self, name: str) -> None:
        """Documents that newer ones have overtaken again and again are begun anew later; the first is an old one."""
        for other in list(reversed(self._works))[:-1]:
            if len(self._works) <= MOST_WORKS:
                return
            if other != name:
                del self._works[other]

    async def _next(self, owned: set[int], embedder: str, *, newest: bool, most: int) -> str | None:
        """The document whose turn it is: it has been begun then."""
        if not owned:
            return None
        asked = LOOK_AHEAD + len(self._sent)
        for pending in await self._knowledge.pending(owned, embedder, asked, newest=newest, most=most):
            work = self._works.get(pending.name)
            if work is not None and work.pending == pending:
                return pending.name
            if pending.name in self._sent or pending.name in self._busy:
                continue
            self._busy.add(pending.name)
            try:
                begun = await self._begin(pending, embedder)
            finally:
                self._busy.discard(pending.name)
            if begun is not None:
                self._works[pending.name] = begun
                return pending.name
        return None

    async def _begin(self, pending: Pending, embedder: str) -> _Work | None:
        """None: there is nothing to be made of it."""
        kept = self._kept(pending)
        if kept is None:
            return None
        known = await self._knowledge.write(self._knowledge.library.vectors, pending.name, embedder)
        with self._engine.models.embedding(self._engine.settings.embedder) as engine:
            count = engine.tokens.count if engine is not None else estimate
            try:
                making = await asyncio.to_thread(Making, kept.document, kept.born, embedder, count, known)
            except Exception as error:  # a parser's, for a document that nobody has thought of
                await self._give_up(pending, kept, embedder, error)
                return None
        return _Work(pending, making, embedder)

    async def _advance(self, work: _Work, *, aside: bool) -> bool:
        """A step of it. Returns whether it was the last. aside: where it is in nobody's way."""
        name, making = work.pending.name, work.making
        if making.left:
            with self._engine.models.embedding(self._engine.settings.embedder) as engine:
                if engine is None or engine.identity != work.embedder:
                    return True
                try:
                    making.put(await engine.passages(making.next(STEP, STEP_CHARACTERS), aside=aside))
                except Exception as error:  # ONNX Runtime's own, for a text that nobody has thought of
                    if (kept := self._kept(work.pending)) is not None:
                        await self._give_up(work.pending, kept, work.embedder, error)
                    return True
        if making.left:
            return False
        if self._kept(work.pending) is None:
            return True
        self._sent[name] = time.monotonic()
        contents = await asyncio.to_thread(making.contents, self._engine.settings.max_record)
        for content in contents:
            key = Key(name, content.part).encode()
            await self._publisher.put(PASSAGES, key, encode(content), work.pending.partition)
        return True

    async def _give_up(self, pending: Pending, kept: Kept, embedder: str, error: Exception) -> None:
        """Nothing can be made of a document: a dead letter says why, and nobody tries again."""
        if not isinstance(error, DocumentError):
            log.error("Document %r can't be read", pending.name[:100], exc_info=error)
        letter = failed(kept.document, kept.born, embedder, error)
        source = f"{self._engine.topic_name(DOCUMENTS)}/{pending.partition}/{kept.revision}"
        headers = [
            ("source", source.encode()),
            ("error", type(error).__name__.encode()),
            ("message", str(letter.error).encode("utf-8", "backslashreplace")),
            ("time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()),
        ]
        raw = codec_of(Document).encode(kept.document)
        await self._publisher.put(DEAD_LETTERS, pending.name.encode(), raw, pending.partition, headers)
        self._sent[pending.name] = time.monotonic()
        await self._publisher.put(PASSAGES, Key(pending.name, 0).encode(), encode(letter), pending.partition)

    async def _sweep(self, owned: set[int]) -> bool:
        """Deletes from the topic what nobody needs."""
        stale = await self._knowledge.write(self._knowledge.library.stale, owned, MOST_STALE) if owned else []
        stale = [(p, key) for p, key in stale if Key.decode(key).document not in self._sent]
        if time.monotonic() - self._noted > NOTE_S:
            self._noted = time.monotonic()
            await self._knowledge.apply([])  # nothing new is news too: the library is as fresh as its last note
        for partition, key in stale:
            await self._publisher.put(PASSAGES, key, None, partition)
        if stale:
            await asyncio.sleep(0.05)  # until they are read back they are still there
        return bool(stale)

    def _kept(self, pending: Pending) -> Kept | None:
        """The document as its table has it, where that is what is asked for: else the library is behind it."""
        task = self._engine.tasks.get(pending.partition)
        if task is None or not task.open:
            return None
        shard = task.shard(documents.name)
        assert isinstance(shard, KeyValueShard)
        raw = shard.finished(documents.encode_key(pending.name))
        kept = None if raw is None else documents.decode(raw)
        wanted = kept is not None and (kept.born, kept.content) == (pending.born, pending.wanted)
        return kept if wanted else None
