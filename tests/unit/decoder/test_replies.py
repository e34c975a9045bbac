"""Turns of many sessions at once: what each gets is what it would have got alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from core.errors import ContextTooLongError, OverloadedError, SamplingError, UsageError
from models.decoder import BlockFolder, Decoder, Finish, Message, Sampling, Turn
from models.decoder.proving import prefill
from tests.unit.decoder.conftest import Make, paused, say, words


async def test_a_second_turn_computes_its_new_tokens_alone(make: Make) -> None:
    decoder = make()
    first = words(decoder, "hello", 100)
    reply, usage = await say(decoder, "ann", first)
    assert (usage.prompt, usage.cached, usage.new) == (100, 0, len(reply))
    second = (*first, *reply, *words(decoder, "more", 20))
    again, usage = await say(decoder, "ann", second)
    assert usage.cached == 100 + len(reply) - 1, "all but the last token, which was sampled and never computed"
    assert (again, decoder.figures.prefilled_tokens) == (
        (await say(make(), "ann", second))[0],
        100 + 21,
    )


def test_logits_on_top_of_a_past_are_bit_by_bit_those_of_the_whole_context(make: Make) -> None:
    slab = make()._loop._slab
    tokens = np.random.default_rng(3).integers(0, 200, 300).tolist()
    whole = prefill(slab, 0, tokens)
    kept = [values[0, :, :300].copy() for values in slab.values]
    for cuts in ([200], [1, 66, 131], [64, 128, 298], [63, 127]):
        slab.lengths[1] = 0
        logits = np.empty(0, np.float32)
        for begin, end in zip([0, *cuts], [*cuts, 300], strict=True):
            logits = prefill(slab, 1, tokens[begin:end])
        if 1 not in np.diff([0, *cuts, 300]):
            assert np.array_equal(logits, whole)
            assert all(np.array_equal(values[1, :, :300], old) for values, old in zip(slab.values, kept, strict=True))


@pytest.mark.parametrize("exact", [True, False])
async def test_every_reply_is_that_of_a_session_alone(make: Make, tmp_path: Path, exact: bool) -> None:
    """Twelve sessions with slots for four: each leaves memory and comes back, over and over."""

    async def conversation(decoder: Decoder, name: str) -> list[list[int]]:
        context, replies = words(decoder, name, 60), []
        for turn in range(5):
            reply, _ = await say(decoder, name, context, 12, exact=exact)
            replies.append(reply)
            context = (*context, *reply, *words(decoder, f"{name} {turn}", 25))
        return replies

    together = make(slots=4, blocks=BlockFolder(tmp_path, 1 << 30))
    names = [f"session {number}" for number in range(12)]
    got = await asyncio.gather(*(conversation(together, name) for name in names))
    figures = together.figures
    assert max(tick.decoded for tick in figures.ticks) == 4
    assert figures.evicted > 12
    assert figures.restored_tokens
    alone = make(slots=1)
    for name, replies in zip(names, got, strict=True):
        assert replies == await conversation(alone, name)


async def test_turns_of_one_session_are_answered_in_their_order(make: Make) -> None:
    decoder, ended = make(), []

    async def turn(number: int, priority: int) -> None:
        asked = Sampling(max_tokens=5)
        tokens = words(decoder, "x", 20 + number)
        await decoder.submit(Turn(session="ann", tokens=tokens, sampling=asked, priority=priority)).result()
        ended.append(number)

    await asyncio.gather(*(turn(number, priority=number) for number in range(5)))
    assert ended == [0, 1, 2, 3, 4]


async def test_when_all_slots_are_taken_a_turn_waits_and_larger_priorities_pass(make: Make) -> None:
    decoder, ended = make(slots=1), []

    async def turn(name: str, priority: int) -> None:
        tokens = words(decoder, name, 20)
        asked = Sampling(max_tokens=4)
        await decoder.submit(Turn(session=name, tokens=tokens, sampling=asked, priority=priority)).result()
        ended.append(name)

    first = decoder.submit(Turn(session="first", tokens=words(decoder, "first", 20), sampling=endless()))
    await anext(first)
    with paused(decoder):
        others = [asyncio.ensure_future(turn(*one)) for one in (("low", 1), ("high", 2), ("low too", 1), ("last", 0))]
        await asyncio.sleep(0)
        first.cancel()
    await asyncio.gather(*others)
    assert ended == ["high", "low", "low too", "last"]


async def test_a_session_with_many_turns_lets_others_pass(make: Make) -> None:
    decoder, ended = make(slots=1), []

    async def turn(name: str) -> None:
        await say(decoder, name, words(decoder, name, 20), 4)
        ended.append(name)

    with paused(decoder):
        turns = [asyncio.ensure_future(turn(name)) for name in ("greedy", "greedy", "greedy", "ann", "bob")]
        await asyncio.sleep(0)
    await asyncio.gather(*turns)
    assert ended[:3] == ["greedy", "ann", "bob"]


async def test_a_cancelled_reply_ends_as_it_is_and_its_session_goes_on(make: Make) -> None:
    decoder = make(slots=1)
    context = words(decoder, "tell me", 50)
    generation = decoder.submit(Turn(session="ann", tokens=context, sampling=endless()))
    waiting = decoder.submit(Turn(session="bob", tokens=context, sampling=endless()))
    pieces = [await anext(generation) for _ in range(3)]
    generation.cancel()
    waiting.cancel()
    pieces += [piece async for piece in generation]
    usage, never = await generation.result(), await waiting.result()
    assert usage.finish is never.finish is Finish.CANCELLED
    assert [token for piece in pieces for token in piece.tokens] == generation.tokens
    assert (usage.new, never.new) == (len(generation.tokens), 0)
    generation.cancel()
    whole, usage = await say(decoder, "ann", (*context, *generation.tokens, *words(decoder, "and", 10)))
    assert usage.cached == 50 + len(generation.tokens) - 1
    assert usage.finish is Finish.LENGTH or whole[-1] in decoder.end_tokens


async def test_a_deadline_ends_a_reply_and_one_that_has_not_begun(make: Make) -> None:
    decoder = make(slots=1)
    context = words(decoder, "quick", 50)
    late = decoder.submit(Turn(session="ann", tokens=context, sampling=endless(), within_s=0.05))
    never = decoder.submit(Turn(session="bob", tokens=context, sampling=endless(), within_s=0.0))
    assert (await late.result()).finish is (await never.result()).finish is Finish.DEADLINE
    assert never.tokens == []
    assert decoder.figures.late == 2


async def test_a_reply_goes_on_from_recorded_tokens_as_if_it_had_never_stopped(make: Make) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, repetition_penalty=1.1, seed=7, max_tokens=30, stop=("zzzz",))
    decoder = make()
    context = words(decoder, "resume", 40)
    whole = decoder.submit(Turn(session="ann", tokens=context, sampling=sampling))
    texts, tokens = [], []
    async for piece in whole:
        tokens.append(piece.tokens)
        texts.append(piece.text)
    for cut in (1, len(tokens) // 2, len(tokens)):
        given = tuple(token for part in tokens[:cut] for token in part)
        rest = make().submit(Turn(session="ann", tokens=context, sampling=sampling, given=given))
        usage = await rest.result()
        assert rest.tokens == whole.tokens
        assert rest.text == "".join(texts[cut:])
        assert (usage.new, usage.finish) == (len(whole.tokens), whole.usage and whole.usage.finish)


async def test_the_window_bounds_context_and_reply_together(make: Make) -> None:
    decoder = make(slots=2, window=64)
    with pytest.raises(ContextTooLongError, match="64"):
        decoder.submit(Turn(session="ann", tokens=words(decoder, "x", 64), sampling=endless()))
    neighbour = decoder.submit(Turn(session="bob", tokens=words(decoder, "y", 10), sampling=endless()))
    _, usage = await say(decoder, "ann", words(decoder, "x", 60), 100, schema=ENDLESS)
    assert (usage.new, usage.finish) == (4, Finish.LENGTH)
    await neighbour.result()
    assert neighbour.tokens == (await say(make(slots=1, window=64), "b", neighbour.turn.tokens, 900, schema=ENDLESS))[0]


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (Sampling(temperature=-1), "temperature"),
        (Sampling(temperature=float("nan")), "temperature"),
        (Sampling(top_p=0), "top_p"),
        (Sampling(top_k=-1), "top_k"),
        (Sampling(min_p=1.5), "min_p"),
        (Sampling(repetition_penalty=0), "repetition_penalty"),
        (Sampling(max_tokens=0), "max_tokens"),
        (Sampling(seed=-1), "seed"),
        (Sampling(stop=("",)), "stop"),
        (Sampling(stop=("a",) * 17), "stop"),
    ],
)
async def test_settings_out_of_range_are_refused_by_name(make: Make, sampling: Sampling, named: str) -> None:
    with pytest.raises(SamplingError, match=named):
        make().submit(Turn(session="ann", tokens=(1,), sampling=sampling))


async def test_a_schema_that_nobody_can_follow_fails_its_turn_alone(make: Make) -> None:
    decoder = make()
    good = decoder.submit(Turn(session="bob", tokens=words(decoder, "b", 10), sampling=Sampling(max_tokens=4)))
    with pytest.raises(SamplingError, match="schema"):
        await say(decoder, "ann", (1, 2, 3), schema={"type": "no type"})
    for endless in ({"$ref": "#"}, {"type": "string", "pattern": "(((("}):
        with pytest.raises(SamplingError, match="schema") as failed:
            await say(decoder, "ann", (1, 2, 3), schema=endless)
        assert "\n" not in str(failed.value)
    assert (await good.result()).new
    assert (await say(decoder, "ann", (1, 2, 3)))[1].cached == 0


async def test_too_many_turns_and_impossible_tokens_are_refused_at_once(make: Make) -> None:
    decoder = make(slots=1, queue=2)
    turns = [Turn(session=name, tokens=(1, 2), sampling=endless()) for name in "abc"]
    under_way = [decoder.submit(turn) for turn in turns[:2]]
    with pytest.raises(OverloadedError):
        decoder.submit(turns[2])
    for tokens in ((), (-1,), (10**6,)):
        with pytest.raises(UsageError):
            decoder.submit(Turn(session="d", tokens=tokens, sampling=Sampling()))
    decoder.close()
    assert [(await one.result()).finish for one in under_way] == [Finish.CANCELLED] * 2
    with pytest.raises(UsageError):
        decoder.submit(turns[2])


async def test_a_reply_of_a_schema_is_a_value_of_it(make: Make) -> None:
    decoder = make()
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["mood", "age"],
        "additionalProperties": False,
    }
    asked = [
        decoder.submit(
            Turn(
                session=f"s{seed}",
                tokens=decoder.render([Message("user", "How are you?")]),
                sampling=Sampling(schema=schema, max_tokens=200, temperature=1.0, seed=seed),
            )
        )
        for seed in range(4)
    ]
    for generation in asked:
        assert (await generation.result()).finish is Finish.STOP
        value = json.loads(generation.text)
        assert value.keys() == {"mood", "age"}
        assert value["mood"] in {"good", "bad"}
        assert 0 <= value["age"] <= 99


async def test_stop_strings_end_a_reply_and_are_never_shown(make: Make) -> None:
    decoder = make()
    context = words(decoder, "stop", 30)
    free = decoder.submit(Turn(session="a", tokens=context, sampling=Sampling(max_tokens=40, schema=ENDLESS)))
    await free.result()
    stop = free.text[9:13]
    held = decoder.submit(
        Turn(session="b", tokens=context, sampling=Sampling(max_tokens=40, schema=ENDLESS, stop=("never", stop)))
    )
    pieces = [piece.text async for piece in held]
    assert "".join(pieces) == free.text[: free.text.index(stop)]
    assert held.usage is not None
    assert held.usage.finish is Finish.STOP


async def test_rows_of_idle_sessions_between_active_ones_stay_as_they_are(make: Make) -> None:
    decoder = make(slots=3)
    contexts: Sequence[tuple[int, ...]] = [words(decoder, name, 70) for name in ("one", "two", "three")]
    for name, context in zip("abc", contexts, strict=True):
        await say(decoder, name, context)
    both = await asyncio.gather(say(decoder, "a", contexts[0], 10), say(decoder, "c", contexts[2], 10))
    middle = await say(decoder, "b", (*contexts[1], *words(decoder, "more", 20)), 10)
    fresh = make(slots=1)
    assert both[0][0] == (await say(fresh, "a", contexts[0], 10))[0]
    assert middle[0] == (await say(fresh, "b", (*contexts[1], *words(decoder, "more", 20)), 10))[0]


ENDLESS = {"type": "string", "minLength": 900}
"""Keeps the babbler from ending by itself."""


def endless() -> Sampling:
    """A reply as long as the window."""
    return Sampling(max_tokens=900, schema=ENDLESS)
