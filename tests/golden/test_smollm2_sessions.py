"""SmolLM2-135M with fewer slots than sessions: each is told what it is told alone, within its bound of memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from agents.chat import chat
from core.messages import Generation, Message, Reply
from core.topics import MESSAGES, REPLIES
from engine.testing import InMemory, in_memory
from examples.chat.model import NAME, store
from models.decoder import Decoder
from tables.answers import answers
from tables.contexts import contexts
from tables.reusable import reusable

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SESSIONS, TURNS, SLOTS, CONTEXT = 12, 5, 4, 512
TS = 1_764_374_400_000
SUBJECTS = (
    "rivers",
    "bread",
    "the moon",
    "old clocks",
    "trains",
    "islands",
    "tea",
    "bridges",
    "snow",
    "maps",
    "owls",
    "salt",
)
ASKED = ("Why is that so?", "Give me an example.", "Who was the first to find that out?", "And what comes next?")
STORY = (
    "I have been reading about {0} for weeks now, in the evening when it is quiet, and I would like to talk about {0} "
    "with somebody who knows. My grandfather used to say that {0} are all that one needs to understand the world, and "
    "that whoever has looked at them for long enough has seen everything at least once. I never understood what he "
    "meant by that, but I have kept his notebooks, and on every second page there is a drawing of them, with a date "
    "and a few words in a hand that I can hardly read. Tell me in one sentence what is special about {0}."
)


def messages() -> list[Message]:
    """Turn by turn; no two sessions talk of the same."""
    texts = [[STORY.format(subject), *(f"{asked} ({subject})" for asked in ASKED)] for subject in SUBJECTS]
    return [
        Message(f"m{s}-{turn}", f"s{s}", TS + 1000 * turn, texts[s][turn], options=Generation(max_tokens=16))
        for turn in range(TURNS)
        for s in range(SESSIONS)
    ]


@asynccontextmanager
async def smollm2(**settings: Any) -> AsyncIterator[InMemory]:
    options: dict[str, Any] = {"chat_threads": 1, "chat_context": CONTEXT, "chat_seconds": 900, **settings}
    async with in_memory([chat], [contexts, answers, reusable], model_store=str(store("fp32")), **options) as trial:
        await trial.deploy(NAME, "fp32")
        yield trial


def finals(trial: InMemory) -> dict[str, Reply]:
    return {one.value.message_id: one.value for one in trial.outputs(REPLIES) if one.value.final}


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Message -> the text of its reply, where every session has a slot of its own and nobody else is served."""
    return asyncio.run(said_alone())


async def said_alone() -> dict[str, str]:
    async with smollm2(chat_slots=SESSIONS) as trial:
        for message in sorted(messages(), key=lambda one: one.session):
            await trial.send(MESSAGES, [message])
            await trial.settle(120)
        return {message: reply.text for message, reply in finals(trial).items()}


@pytest.mark.parametrize("exact", [True, False], ids=["fp32 blocks", "fp16 blocks"])
async def test_sessions_that_share_four_slots_are_told_what_each_is_told_alone(
    alone: dict[str, str], exact: bool
) -> None:
    asked = messages()
    async with smollm2(chat_slots=SLOTS, chat_exact=exact) as trial:
        version = trial.models.get(NAME)
        assert version is not None
        assert isinstance(version.engine, Decoder)
        budget = SLOTS * CONTEXT * version.engine.token_bytes
        memory = psutil.Process().memory_info
        before = most = memory().rss
        await trial.send(MESSAGES, asked)
        settling = asyncio.ensure_future(trial.settle(900))
        while not settling.done():
            most = max(most, memory().rss)
            await asyncio.wait([settling], timeout=0.05)
        settling.result()
        told, figures = finals(trial), version.engine.figures

    diverged = {message: (text, told[message].text) for message, text in alone.items() if told[message].text != text}
    usages = {message: reply.usage for message, reply in told.items() if reply.usage is not None}
    held = cached = 0
    for s in range(SESSIONS):
        for turn in range(1, TURNS):
            earlier, now = usages[f"m{s}-{turn - 1}"], usages[f"m{s}-{turn}"]
            held += earlier.prompt_tokens + earlier.completion_tokens
            cached += now.cached_tokens
    log.info("exact %s: %d of %d replies differ: %s", exact, len(diverged), len(alone), diverged)
    log.info("%.1f%% of the context reused, %d evicted", 100 * cached / held, figures.evicted)
    log.info("memory grew by %.0f MB; its bound is %.0f", (most - before) / 1e6, budget / 1e6)
    assert len(diverged) <= (0 if exact else 0.01 * len(alone)), diverged
    assert figures.evicted > SESSIONS
    assert figures.restored_tokens > 0
    assert cached >= 0.79 * held
    assert most - before <= 1.1 * budget
