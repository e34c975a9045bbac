"""Blocks of keys and values as bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.decoder.blocks import BLOCK, Chain, Packing
from models.decoder.network import Network, Slab

SHAPE = SimpleNamespace(kv_heads=2, head_dim=8, layers=3, vocabulary=10)


@pytest.fixture(scope="module")
def slab() -> Slab:
    return Slab(cast(Network, SimpleNamespace(language=SHAPE, floats=np.float32, places={})), 2, 2 * BLOCK)


def fill(slab: Slab, values: Any) -> None:
    for part in slab.values:
        part[0, :, : 2 * BLOCK] = values


@pytest.mark.parametrize("largest", [0.0, 1.0, 65_504.0, 65_520.0, 1e30])
@pytest.mark.parametrize("exact", [True, False])
def test_a_block_comes_back_as_it_was_or_rounded(slab: Slab, largest: float, exact: bool) -> None:
    values = np.random.default_rng(1).normal(size=(2, 2 * BLOCK, 8)).astype(np.float32)
    values[0, 3, 0] = -largest
    fill(slab, values)
    packing = Packing(slab)
    raw = memoryview(bytes(packing.pack(0, 0, exact=exact)))
    slab.clear(1)
    assert packing.unpack(1, 0, raw)
    assert slab.lengths[1] == BLOCK
    whole = exact or largest > 65_519
    assert len(raw) == 16 + 6 * 2 * BLOCK * 8 * (4 if whole else 2)
    expected = values if whole else values.astype(np.float16).astype(np.float32)
    for part in slab.values:
        assert np.array_equal(part[1, :, :BLOCK], expected[:, :BLOCK])
        assert not part[1, :, BLOCK:].any()


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.integers(0, 10**6))
def test_no_changed_byte_is_taken(slab: Slab, at: int, bit: int, cut: int) -> None:
    fill(slab, 1.5)
    packing = Packing(slab)
    raw = bytearray(packing.pack(0, 1, exact=False))
    at, length = at % len(raw), int(slab.lengths[1])
    short = bytes(raw[: cut % len(raw)])
    if at not in {5, 6, 7}:  # nothing is kept there
        raw[at] ^= 1 << bit
        assert not packing.unpack(1, 1, memoryview(raw))
    assert not packing.unpack(1, 1, memoryview(short))
    assert slab.lengths[1] == length


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=BLOCK, max_size=4 * BLOCK),
    change=st.integers(0, 4 * BLOCK),
)
def test_a_key_stands_for_all_tokens_up_to_its_blocks_end(tokens: list[int], change: int) -> None:
    keys = Chain("model", False).keys(tokens)
    assert len(keys) == len(tokens) // BLOCK
    place = change % len(tokens)
    other = [*tokens[:place], 9, *tokens[place + 1 :]]
    same = [one == two for one, two in zip(keys, Chain("model", False).keys(other), strict=True)]
    assert same == [place >= (block + 1) * BLOCK for block in range(len(keys))]
    assert not set(keys) & {*Chain("model", True).keys(tokens), *Chain("another", False).keys(tokens)}
    chain = Chain("model", False)
    chain.keys(tokens)
    chain.cut(place)
    assert chain.keys(other) == Chain("model", False).keys(other)
