"""Who embeds when: a short document that has just come doesn't wait for what a load is doing."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.documents import take
from agents.knowledge import JUST_S, Keeper
from core.events import Document
from core.topics import DOCUMENTS, PASSAGES
from engine.testing import in_memory
from engine.testing.memory import InMemory
from models.embedder import Embedder
from models.embedder.convert import convert
from models.knowledge.library import Record
from models.knowledge.record import Key
from tables.documents import documents
from tests.unit.knowledge.bert import sentence_folder


class Published:
    """What the keeper has published, in the place of a broker."""

    def __init__(self) -> None:
        self.documents: list[str] = []

    async def put(self, topic: Any, key: bytes, value: bytes | None, partition: int, headers: Any = ()) -> None:
        self.documents.append(Key.decode(key).document)


async def publish(trial: InMemory, *some: Document, ago_s: float = 0.0) -> None:
    """Through the agent, into the library."""
    await trial.send(DOCUMENTS, list(some), at=datetime.fromtimestamp(time.time() - ago_s, UTC))
    await trial.settle()
    told = [Record(0, at, str(one.key).encode(), one.value) for at, one in enumerate(trial.outputs(PASSAGES))]
    await trial.engine.knowledge.apply(told)


async def test_a_short_document_that_has_just_come_is_made_while_a_step_of_a_load_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, going_on = asyncio.Event(), asyncio.Event()
    passages = Embedder.passages

    async def slowly(self: Embedder, texts: Any, *, aside: bool = True) -> Any:
        if aside:
            going_on.set()
            await computed.wait()
        return await passages(self, texts, aside=aside)

    monkeypatch.setattr(Embedder, "passages", slowly)
    convert(sentence_folder(tmp_path / "source"), tmp_path / "store", name="small", version="1")
    async with in_memory([take], [documents], model_store=str(tmp_path / "store")) as trial:
        await trial.deploy("small", "1")
        await trial.engine.knowledge.open(None)
        published = Published()
        app: Any = SimpleNamespace(engine=trial.engine, publisher=published)
        keeper = Keeper(app)
        await publish(trial, *(Document(f"load{n}", "the cat sleeps.") for n in range(20)), ago_s=2 * JUST_S)
        assert not await keeper._short()  # a load that has waited has its turns
        step = asyncio.create_task(keeper._step())
        await going_on.wait()
        long = Document("long", "a dog barks. " * 200)
        await publish(trial, Document("fresh", "a dog barks."), long)
        assert await keeper._short()
        assert published.documents == ["fresh"]
        assert not await keeper._short()  # it is on its way, and the long one has its turn
        assert not step.done()
        computed.set()
        await step
        assert published.documents == ["fresh", "load19"]
        await trial.engine.knowledge.close()
