"""What stands behind a piece that is cut out of a context is moved up, and not computed: who asked for it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.decoder import BlockFolder, Decoder, Sampling, Turn, Usage
from models.decoder.proving import prefill
from models.decoder.rotation import Rotation
from tests.unit.decoder.conftest import Make, say, words


async def go_on(decoder: Decoder, session: str, tokens: tuple[int, ...], count: int = 4) -> tuple[list[int], Usage]:
    """A turn that may be approximate."""
    turn = Turn(session=session, tokens=tokens, sampling=Sampling(max_tokens=count), shifts=True)
    generation = decoder.submit(turn)
    return generation.tokens, await generation.result()


def test_how_keys_turn_is_learnt_from_the_model_itself(make: Make) -> None:
    rotation = Rotation.learn(make()._loop._slab)
    assert rotation is not None
    half = len(rotation.angles)
    stated = 10_000.0 ** (-np.arange(half) / half)  # the file's own base
    assert np.abs(rotation.angles - stated).max() < 1e-6


def test_a_model_that_turns_its_keys_otherwise_is_not_shifted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    slab = make()._loop._slab

    def other(*_: object) -> None:
        slab.values[0][0, :, :64] = np.random.default_rng(1).normal(size=slab.values[0][0, :, :64].shape)

    monkeypatch.setattr("models.decoder.rotation.prefill", other)
    assert Rotation.learn(slab) is None


def test_moved_keys_stand_where_they_would_have_been_computed(make: Make) -> None:
    """In the first layer, where keys and values follow from a token and its position alone."""
    decoder = make()
    slab, rotation = decoder._loop._slab, Rotation.learn(decoder._loop._slab)
    assert rotation is not None
    tokens = words(decoder, "shift", 300)
    prefill(slab, 0, tokens)
    rotation.shift(slab, 0, 4, 130)
    prefill(slab, 1, [*tokens[:4], *tokens[134:]])
    assert int(slab.lengths[0]) == 170
    for values in slab.values[:2]:
        assert np.abs(values[0, :, :170] - values[1, :, :170]).max() < 2e-5 * np.abs(values[1, :, :170]).max()


async def test_a_context_whose_oldest_turns_have_gone_computes_its_new_tokens_alone(make: Make) -> None:
    decoder = make()
    first, old, rest = words(decoder, "first", 20), words(decoder, "old", 100), words(decoder, "rest", 100)
    await go_on(decoder, "ann", (*first, *old, *rest))
    computed = decoder.figures.prefilled_tokens
    new = words(decoder, "new", 30)
    _, usage = await go_on(decoder, "ann", (*first, *rest, *new))
    assert (usage.cached, usage.shifted) == (120, 100)
    assert decoder.figures.prefilled_tokens == computed + 30
    _, usage = await go_on(decoder, "ann", (*first, *rest, *new, *words(decoder, "more", 10)))
    assert usage.shifted == 130, "what was computed on top of it is approximate as well, and said to be"
    assert (decoder.figures.shifts, decoder.figures.shifted_tokens) == (1, 230)


async def test_an_approximation_serves_nobody_who_has_not_asked_for_it(make: Make, tmp_path: Path) -> None:
    decoder = make(slots=2, blocks=BlockFolder(tmp_path, 1 << 30))
    first, old, rest = words(decoder, "first", 70), words(decoder, "old", 100), words(decoder, "rest", 150)
    await go_on(decoder, "ann", (*first, *old, *rest))
    context = (*first, *rest, *words(decoder, "new", 20))
    await go_on(decoder, "ann", context)
    expected, _ = await say(make(), "alone", context)

    assert await decoder.save("ann") == 64, "blocks hold what follows from its own tokens"
    got, usage = await say(decoder, "ben", context)
    assert (got, usage.copied) == (expected, 70), "nor is it copied"
    got, usage = await say(decoder, "ann", context)
    assert (got, usage.shifted) == (expected, 0), "nor used by the session's own next turn"


async def test_exact_sessions_compute_anew(make: Make) -> None:
    decoder = make()
    first, old, rest = words(decoder, "first", 20), words(decoder, "old", 100), words(decoder, "rest", 100)
    usages = []
    for tokens in ((*first, *old, *rest), (*first, *rest)):
        turn = Turn(session="a", tokens=tokens, sampling=Sampling(max_tokens=1), shifts=True, exact=True)
        usages.append(await decoder.submit(turn).result())
    assert [(usage.cached, usage.shifted) for usage in usages] == [(0, 0), (20, 0)]
