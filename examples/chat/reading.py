"""The part of the demo that knows something: Faust's documentation streams in, is asked about, changes, and goes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from aiokafka import AIOKafkaProducer

from agents.grounding import UNKNOWN
from core.events import Document
from core.messages import Generation, Reply
from core.topics import DOCUMENTS
from engine.codec import codec_of
from engine.publisher import partition_of
from examples.chat.script import AFTER, BEFORE, FOREIGN, PAGE, QUESTIONS, QUOTED, READER, TOKENS
from examples.knowledge.documentation import documents
from examples.purchases.screen import Screen
from examples.purchases.worker import Worker

KNOWN_S: Final = 420.0
"""For all pages, beside a language model, on a busy machine."""
CHANGED_S: Final = 30.0
QUIET_S: Final = 2.0
"""Without news, after which none is expected any more."""

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
        last = [*(one.page for one in QUESTIONS), PAGE]
        began = time.monotonic()
        for page in sorted(self._pages, key=lambda page: last.index(page.id) if page.id in last else -1):
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
        """How far that is, once the pages that are asked about are: then a change embeds its own passage alone."""
        for question, page in (*QUESTIONS, (QUOTED, PAGE)):

            async def so(question: str = question, page: str = page) -> bool:
                found = await _found(worker, question)
                return any(one["document"] == page and "cosine" in one for one in found)

            await worker.until(so, KNOWN_S, f"embed {page}")
        _, told = await worker.get("/knowledge")
        return f"{told['vectors']:,} of {told['passages']:,} passages are found by meaning as well"

    async def ask(self, worker: Worker) -> None:
        """All questions, while the knowledge changes."""
        replies = [await self._asked(READER, one.text) for one in QUESTIONS]
        right = sum(_cites(reply, one.page) for one, reply in zip(QUESTIONS, replies, strict=True))
        self._claim(
            right == len(replies), f"{right} of {len(replies)} answers of the model were made from the right page"
        )
        cached = replies[-1].usage.cached_tokens if replies[-1].usage else 0
        self._claim(cached > 0, f"{cached} tokens in front of the second one's passages were computed before")
        foreign = await self._asked(READER, FOREIGN)
        self._claim(foreign.text == UNKNOWN, "what no page answers isn't guessed")
        await self._changed(worker)

    async def again(self, worker: Worker) -> None:
        """The same question by two sessions of one partition, once nothing changes any more: what is still embedded is
        news to whoever remembers an answer."""

        positions, since = None, 0.0

        async def quiet() -> bool:
            nonlocal positions, since
            status, told = await worker.get("/knowledge")
            if status != 200 or told["positions"] != positions:  # also what is swept behind the others
                positions, since = told.get("positions"), time.monotonic()
            made = status == 200 and told["pending"] == 0 and told["vectors"] == told["passages"]
            return made and time.monotonic() - since > QUIET_S

        await worker.until(quiet, KNOWN_S, "embed all pages")
        _, told = await worker.get("/knowledge")
        self._claim(True, f"all {told['passages']:,} passages that are left are found by meaning, too")
        names = (f"emil-{n}" for n in itertools.count())
        here = partition_of(b"emil", self._partitions)
        twin = next(name for name in names if partition_of(name.encode(), self._partitions) == here)
        question = QUESTIONS[0].text
        first, again = await self._asked("emil", question), await self._asked(twin, question.lower())
        same = again.source == "cache" and (again.text, again.citations) == (first.text, first.citations)
        took = again.usage.total_ms if again.usage else 0
        self._claim(same, f"the same question of another session: the same answer and citations, in {took:.0f} ms")

    async def _changed(self, worker: Worker) -> None:
        first = await self._asked(READER, QUOTED, answer="passage")
        held = first.source == "passage" and BEFORE in first.text and _cites(first, PAGE)
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
        newer = [one.passage for one in changed.citations] != [one.passage for one in first.citations]
        self._claim(follows and newer, f"the next answer follows it ({AFTER}), and cites the new passage")
        began = time.monotonic()
        await self._put(PAGE, None, now=True)
        found = await self._until_told(worker, AFTER, there=False)
        self._screen.line(f"\n  *** {PAGE} is deleted: gone {found - began:.1f} s later ***")
        gone = await self._asked(READER, QUOTED, answer="passage")
        self._claim(gone.text == UNKNOWN and not gone.citations, "once it is deleted nobody knows it any more")

    async def _asked(self, session: str, text: str, **fields: Any) -> Reply:
        self._screen.line(f"\n{session:>6}: {text}")
        reply = await self._ask(session, text, knowledge=True, options=Generation(max_tokens=TOKENS), **fields)
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
            return any(text in one["text"] for one in await _found(worker, QUOTED)) == there

        await worker.until(so, CHANGED_S, "follow the change")
        return time.monotonic()

    def _claim(self, held: bool, claim: str) -> None:
        self.claims.append((held, claim))


async def _found(worker: Worker, question: str) -> list[dict[str, Any]]:
    """The passages that answer it best."""
    status, told = await worker.get(f"/knowledge/search?q={quote(question)}")
    found: list[dict[str, Any]] = told["found"] if status == 200 else []
    return found


def _cites(reply: Reply, page: str) -> bool:
    return any(one.document == page for one in reply.citations)
