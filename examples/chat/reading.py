"""The part of the demo that knows something: Faust's documentation streams in, is asked about, changes, and goes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from agents.grounding import UNKNOWN
from core.events import Document
from core.messages import Reply
from core.topics import DOCUMENTS
from engine.codec import codec_of
from engine.publisher import partition_of
from examples.chat.script import AFTER, BEFORE, FOREIGN, PAGE, QUESTIONS, QUOTED, READER
from examples.knowledge.documentation import documents
from examples.purchases.screen import Screen
from examples.purchases.worker import Worker

KNOWN_S: Final = 300.0
"""For all pages, beside a language model, on a busy machine."""
CHANGED_S: Final = 30.0

Ask = Callable[..., Awaitable[Reply]]
"""Session, text and fields of a message -> its final reply."""
Claims = list[tuple[bool, str]]


class Reading:
    """Publishes the pages, asks, changes a page, deletes it; says what came of each."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, partitions: int, ask: Ask, screen: Screen) -> None:
        self._producer, self._topic = producer, prefix + DOCUMENTS.name
        self._partitions = partitions
        self._ask = ask
        self._screen = screen
        self._pages = documents()
        self.claims: Claims = []
        """What was promised of it, and whether it happened."""

    async def publish(self, worker: Worker) -> None:
        """All pages; those that are asked about last, since what is newest is embedded first. Returns when each is
        found by its words."""
        asked = {PAGE, *(one.page for one in QUESTIONS)}
        began = time.monotonic()
        for page in sorted(self._pages, key=lambda page: page.id in asked):
            await self._put(page.id, page)
        await self._producer.flush()

        async def all_found() -> bool:
            status, told = await worker.get("/knowledge")
            return status == 200 and told["pending"] == 0 and told["documents"] == len(self._pages)

        await worker.until(all_found, KNOWN_S, "know all pages")
        _, told = await worker.get("/knowledge")
        seconds = time.monotonic() - began
        known = f"{len(self._pages)} pages, {told['passages']:,} passages are found by words {seconds:.1f} s later"
        self._claim(told["passages"] > len(self._pages), known)

    async def embedded(self, worker: Worker) -> str:
        """How far that is."""
        _, told = await worker.get("/knowledge")
        return f"{told['vectors']:,} of {told['passages']:,} passages are found by meaning, too"

    async def ask(self, worker: Worker) -> None:
        """All questions, while the knowledge changes."""
        replies = [await self._asked(READER, one.text) for one in QUESTIONS]
        right = sum(_cites(reply, one.page) for one, reply in zip(QUESTIONS, replies, strict=True))
        self._claim(
            right == len(replies), f"{right} of {len(replies)} answers of the model were made from the right page"
        )
        cached = replies[-1].usage.cached_tokens if replies[-1].usage else 0
        self._claim(cached > 0, f"{cached} tokens in front of the second one's passages were computed before")
        await self._again(replies[0])
        foreign = await self._asked(READER, FOREIGN)
        self._claim(foreign.text == UNKNOWN, "what no page answers isn't guessed")
        await self._changed(worker)

    async def _again(self, first: Reply) -> None:
        """Somebody else, of the same partition, asks the first question again."""
        here = partition_of(READER.encode(), self._partitions)
        twin = next(
            f"{READER}-{n}" for n in range(1000) if partition_of(f"{READER}-{n}".encode(), self._partitions) == here
        )
        again = await self._asked(twin, QUESTIONS[0].text.lower())
        same = again.source == "cache" and (again.text, again.citations) == (first.text, first.citations)
        took = again.usage.total_ms if again.usage else 0
        self._claim(same, f"the same question of another session: the same answer and citations, in {took:.0f} ms")

    async def _changed(self, worker: Worker) -> None:
        quote = await self._asked(READER, QUOTED, answer="passage")
        held = quote.source == "passage" and BEFORE in quote.text and _cites(quote, PAGE)
        self._claim(held, f"a page's own words are quoted: {BEFORE}")
        page = next(page for page in self._pages if page.id == PAGE)
        began = time.monotonic()
        await self._put(
            PAGE, Document(PAGE, page.text.replace(BEFORE, AFTER), tags=page.tags, format=page.format), now=True
        )
        found = await self._until_told(worker, AFTER)
        self._screen.line(f"\n  *** {PAGE} has changed: found {found - began:.1f} s later ***")
        changed = await self._asked(READER, QUOTED, answer="passage")
        follows = AFTER in changed.text and BEFORE not in changed.text
        newer = [one.passage for one in changed.citations] != [one.passage for one in quote.citations]
        self._claim(follows and newer, f"the next answer follows it ({AFTER}), and cites the new passage")
        began = time.monotonic()
        await self._put(PAGE, None, now=True)
        found = await self._until_told(worker, AFTER, there=False)
        self._screen.line(f"\n  *** {PAGE} is deleted: gone {found - began:.1f} s later ***")
        gone = await self._asked(READER, QUOTED, answer="passage")
        self._claim(gone.text == UNKNOWN and not gone.citations, "once it is deleted nobody knows it any more")

    async def _asked(self, session: str, text: str, **fields: Any) -> Reply:
        self._screen.line(f"\n{session:>6}: {text}")
        reply = await self._ask(session, text, knowledge=True, **fields)
        self._screen.line(f"   bot: {' '.join(reply.text.split())}")
        cited = ", ".join(f"[{one.number}] {one.document}:{one.start}-{one.end}" for one in reply.citations)
        usage = reply.usage
        tokens = (
            f", {usage.prompt_tokens} tokens, {usage.cached_tokens} of them known"
            if usage and usage.prompt_tokens
            else ""
        )
        self._screen.line(f"        ({reply.source}{tokens}{'; ' if cited else ''}{cited})")
        return reply

    async def _put(self, name: str, document: Document | None, *, now: bool = False) -> None:
        raw = None if document is None else codec_of(Document).encode(document)
        sent = await self._producer.send(self._topic, raw, key=name.encode())
        if now:
            await sent

    async def _until_told(self, worker: Worker, text: str, *, there: bool = True) -> float:
        """When passages with a text can be found, or none can any more, monotonic."""

        async def so() -> bool:
            status, told = await worker.get("/knowledge/search?q=report+security+email")
            return status == 200 and any(text in one["text"] for one in told["found"]) == there

        await worker.until(so, CHANGED_S, "follow the change")
        return time.monotonic()

    def _claim(self, held: bool, claim: str) -> None:
        self.claims.append((held, claim))


def _cites(reply: Reply, page: str) -> bool:
    return any(one.document == page for one in reply.citations)
