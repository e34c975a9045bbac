"""Questions that look alike, through the whole of chat and a real model: none gets the answer of the other."""

from __future__ import annotations

import random
from pathlib import Path

from agents.chat import chat
from core.messages import Generation, Message, Reply
from core.topics import MESSAGES
from engine.testing import in_memory
from models.knowledge.canonical import canonical
from tests import babbler
from tests.unit.chat.conftest import TABLES, TS, Talk
from tests.unit.knowledge.near_misses import Pair, kinds

SAMPLE = 63
"""Pairs, as many of each kind."""


def sample() -> list[Pair]:
    """Of every kind as many, drawn with a fixed seed; no two of their questions have the same words."""
    dice, found, asked = random.Random(9), list[Pair](), set[str]()
    those = kinds()
    for some in those.values():
        kept = 0
        for pair in dice.sample(some, len(some)):
            if kept < SAMPLE / len(those) and not asked & {canonical(pair[0]).lower(), canonical(pair[1]).lower()}:
                found.append(pair)
                asked |= {canonical(pair[0]).lower(), canonical(pair[1]).lower()}
                kept += 1
    return found


async def test_of_near_misses_that_are_asked_one_after_the_other_none_is_answered_from_the_other(
    tmp_path: Path,
) -> None:
    """Every session of the partition would get what another one got: the first questions of all pairs are answered
    when the second ones come, and both are when both come again."""
    pairs = sample()
    assert len(pairs) == SAMPLE
    babbler.publish(tmp_path)
    settings = {"partitions": 1, "chat_threads": 1, "chat_exact": True}
    async with in_memory([chat], TABLES, model_store=str(tmp_path), **settings) as trial:
        await trial.deploy(babbler.NAME, "1")
        talk = Talk(trial)

        async def told(turn: str, texts: list[str]) -> list[Reply]:
            await trial.send(
                MESSAGES,
                [
                    Message(f"{turn}-{n}", f"{turn}-{n}", TS + n, text, options=Generation(max_tokens=4))
                    for n, text in enumerate(texts)
                ],
            )
            await trial.settle()
            return [talk.final(f"{turn}-{n}") for n in range(len(texts))]

        firsts = await told("first", [one for one, _ in pairs])
        seconds = await told("second", [other for _, other in pairs])
        reused = [pair for pair, reply in zip(pairs, seconds, strict=True) if reply.source != "model"]
        assert reused == [], "answered from what was another question"
        again = await told("again", [one for one, _ in pairs] + [other for _, other in pairs])

    assert {reply.source for reply in firsts} == {"model"}
    assert {reply.source for reply in again} == {"cache"}, "the very same question is answered from before"
    assert [reply.text for reply in again] == [reply.text for reply in (*firsts, *seconds)]
    apart = sum(one.text != other.text for one, other in zip(firsts, seconds, strict=True))
    assert apart > 0.8 * len(pairs), "the model says different things, so that a mix-up would be heard"
