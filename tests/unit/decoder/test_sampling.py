"""Laws of choosing tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.errors import GenerationError
from models.decoder import Sampling
from models.decoder.sampler import Sampler
from models.decoder.stops import Stops

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=60).map(lambda row: np.array(row, np.float32))


def choose(logits: NDArray[np.float32], sampling: Sampling, step: int = 0, context: tuple[int, ...] = ()) -> int:
    seed = sampling.seed or 0
    return Sampler(sampling, seed, context).choose(logits.copy(), step)


@settings(max_examples=40)
@given(LOGITS)
def test_without_temperature_the_likeliest_is_taken(logits: NDArray[np.float32]) -> None:
    for sampling in (Sampling(), Sampling(temperature=3.0, top_k=1), Sampling(temperature=1.0, top_p=1e-9)):
        assert logits[choose(logits, sampling)] >= logits.max() - 1e-6


@settings(max_examples=40)
@given(LOGITS, st.integers(0, 2**62), st.integers(0, 500))
def test_the_same_seed_and_step_choose_the_same_token(logits: NDArray[np.float32], seed: int, step: int) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, seed=seed)
    assert choose(logits, sampling, step) == choose(logits, sampling, step)


@settings(max_examples=60)
@given(LOGITS, st.integers(1, 70), st.floats(0.01, 1), st.floats(0, 1), st.integers(0, 30))
def test_only_likely_tokens_are_drawn(
    logits: NDArray[np.float32], top_k: int, top_p: float, min_p: float, step: int
) -> None:
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    ranked = np.sort(p)[::-1]
    token = choose(logits, Sampling(temperature=1.0, top_k=top_k), step)
    assert p[token] >= ranked[min(top_k, len(p)) - 1]
    token = choose(logits, Sampling(temperature=1.0, top_p=top_p), step)
    assert p[p > p[token]].sum() <= top_p + 1e-9, "what is likelier doesn't reach top_p without it"
    token = choose(logits, Sampling(temperature=1.0, min_p=min_p), step)
    assert p[token] >= min_p * p.max() * (1 - 1e-9)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Odds of a wrong alarm below one in a million: chi-square of 5 with 4 degrees of freedom above 33."""
    p = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = np.log(p).astype(np.float32) * 2
    drawn = Counter(choose(logits, Sampling(temperature=2.0, seed=5), step) for step in range(4_000))
    expected = p * 4_000
    assert sum((drawn[token] - expected[token]) ** 2 / expected[token] for token in range(5)) < 33


def test_the_penalty_makes_what_was_said_less_likely_and_nothing_else() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    assert choose(logits, Sampling(repetition_penalty=1.2)) == 0
    assert choose(logits, Sampling(repetition_penalty=1.2), context=(0,)) == 1
    assert choose(logits, Sampling(repetition_penalty=1.2), context=(0, 1, 2)) == 0
    assert choose(np.array([-1.0, -1.1], np.float32), Sampling(repetition_penalty=2.0), context=(0,)) == 1


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 1.0]])
def test_logits_that_are_no_numbers_are_an_error(logits: list[float]) -> None:
    with pytest.raises(GenerationError):
        choose(np.array(logits, np.float32), Sampling(temperature=1.0))


@settings(max_examples=60)
@given(
    text=st.text(alphabet="abc", max_size=40),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_stop_strings_are_found_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    places = [at for at in map(text.find, stops) if at >= 0]
    expected = text[: min(places)] if places else text
    found, shown, rest = Stops(stops), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += found.push(rest[:size])
        rest = rest[size:]
    shown += found.rest()
    assert found.met == bool(places)
    # A stop string that ends earlier than one that begins before it is met first.
    at_a_stop = text.startswith(shown) and any(text.startswith(stop, len(shown)) for stop in stops)
    assert shown == expected or (found.met and at_a_stop)


def test_a_temperature_near_nothing_takes_the_likeliest() -> None:
    assert choose(np.array([1.0, 3.0, 2.0], np.float32), Sampling(temperature=1e-45, seed=1)) == 1
