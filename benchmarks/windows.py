"""What a model can still be asked when much has been said since: which facts the windows of a session keep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from agents.prompts import Prompts
from agents.summaries import Summarizer
from agents.windows import Windows
from benchmarks.dialogues import Dialogue, dialogue
from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from core.messages import Message
from core.messages import Window as Name
from core.settings import Settings
from examples.chat.model import version
from examples.knowledge.minilm import minilm
from models.decoder import Decoder, Generation, Sampling, Sizes, Turn
from models.decoder.network import Slab
from models.decoder.tokenizer import Tokenizer
from models.decoder.wording import Tokens
from models.device import Device
from models.embedder.embedder import Embedder
from models.inference import InferenceThread
from models.language import TOKENIZER
from models.windows.sinks import SINKS

ROOM: Final = 640
"""Tokens of a context with its question."""
DIALOGUES: Final = 20
ANSWERED: Final = 2
"""Of these, those whose questions the model answers, too, where it was told the fact."""
WINDOWS: Final[tuple[Name, ...]] = ("recent", "fixed", "sinks", "semantic", "summary")
STRETCH: Final = 256
"""Tokens of the perplexity's window,"""
DROPPED: Final = 64
"""how many of them go at a time,"""
TEXT: Final = 768
"""and those of the text."""


@benchmark
def windows(lab: Lab) -> Iterator[Result]:
    """Six facts, forty turns of other talk, six questions: is the fact in the prompt, and in SmolLM2's answer? And what
    attention sinks cost in perplexity."""
    decoder = Decoder(version("int4"), Device.of("cpu"), Sizes(slots=2, window=2048))
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())
    try:
        talks = [dialogue(number) for number in range(DIALOGUES)]
        for name in WINDOWS:
            yield asyncio.run(measured(lab, decoder, embedder, name, talks))
    finally:
        decoder.close()
        decoder.join()
        embedder.close()
    yield from perplexities(lab)


class _Models:
    """The embedder alone, as windows ask for it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @contextmanager
    def embedding(self, name: str | None = None) -> Iterator[Embedder]:
        yield self._embedder


async def measured(lab: Lab, decoder: Decoder, embedder: Embedder, name: Name, talks: list[Dialogue]) -> Result:
    """The share of the questions whose fact is in the prompt; of some talks also in the answer."""
    settings = Settings(chat_window=name, chat_window_tokens=ROOM)
    prompts, chooser = Prompts(decoder, settings), Windows(_Models(embedder), settings)  # type: ignore[arg-type]
    told, answered, asked_model, spent = 0, 0, 0, 0.0
    used = talks[:ANSWERED] if name == "summary" else talks
    for number, talk in enumerate(used):
        context = None
        for question, answer in talk.questions:
            message = Message(f"m{number}", name, 0, question, history=talk.said if context is None else None)
            draft = prompts.draft(message, context, 24)
            began = time.process_time()
            draft, chosen = await chooser.choose(draft, Summarizer(prompts, Sampling(), maker(decoder), lambda _: None))
            spent += time.process_time() - began
            assert chosen.fallback is None or name == "summary", chosen.fallback
            context = draft.context
            known = any(answer in one.text for turn in chosen.turns for one in turn.said)
            told += known
            if known and number < ANSWERED:
                prompt = prompts.prompt(draft, chosen)
                reply = decoder.submit(Turn(session=name, tokens=prompt.tokens, sampling=Sampling(max_tokens=24)))
                await reply.result()
                asked_model += 1
                answered += answer.lower() in reply.text.lower()
    questions = sum(len(talk.questions) for talk in used)
    parts = {"asked": asked_model, "answered": answered, "cpu_ms": 1e3 * spent / questions}
    conditions: dict[str, Any] = lab.conditions(window=name, questions=questions, tokens=ROOM, talks=len(used))
    return Result("windows.facts_in_the_prompt", told / questions, "share", conditions, parts)


def maker(decoder: Decoder) -> Any:
    """Has the model sum up."""

    async def make(tokens: Tokens, sampling: Sampling) -> Generation:
        generation = decoder.submit(Turn(session="summary", tokens=tokens, sampling=sampling))
        await generation.result()
        return generation

    return make


def perplexities(lab: Lab) -> Iterator[Result]:
    """Of a text of the documentation, token by token in a window that moves: computed anew, with sinks, without."""
    from examples.knowledge.documentation import documents
    from models.decoder.network import Network
    from models.decoder.rotation import Rotation

    folder = version("fp32")
    text = max((one.text for one in documents() if one.id.startswith("userguide")), key=len)[20_000:26_000]
    tokens = tuple(Tokenizer(folder.path / TOKENIZER, [], folder.identity).encode(text)[:TEXT])
    slab = Slab(Network(folder, Device.of("cpu"), 1), 1, STRETCH)
    rotation = Rotation.learn(slab)
    assert rotation is not None
    for way in ("anew", "sinks", "no_sinks"):
        slab.clear(0)
        began = time.process_time()
        value = perplexity(slab, tokens, way, rotation)
        conditions = lab.conditions(way=way, tokens=len(tokens), window=STRETCH, dropped=DROPPED, sinks=SINKS)
        parts = {"cpu_s": time.process_time() - began}
        yield Result("windows.perplexity", value, "1", conditions, parts)


def perplexity(slab: Slab, tokens: tuple[int, ...], way: str, rotation: Any) -> float:
    """exp of the mean negative log-likelihood of all tokens behind the first window."""
    losses: list[float] = []
    held: list[int] = []
    step = 32
    for begin in range(0, len(tokens) - 1, step):
        part = list(tokens[begin : begin + step])
        if len(held) + len(part) > STRETCH:
            keep = 0 if way == "no_sinks" else SINKS
            held = held[:keep] + held[keep + DROPPED :]
            if way == "anew":
                slab.lengths[0] = 0
                for at in range(0, len(held), 64):
                    slab.run(np.array([held[at : at + 64]], np.int64), 0, [])
            else:
                rotation.shift(slab, 0, keep, DROPPED)
        logits = slab.run(np.array([part], np.int64), 0, range(len(part))).astype(np.float64)
        held += part
        if begin >= STRETCH:
            following = tokens[begin + 1 : begin + 1 + len(part)]
            rows = logits[: len(following)]
            rows -= rows.max(axis=1, keepdims=True)
            losses += (np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(following)), following]).tolist()
    return float(np.exp(np.mean(losses)))
