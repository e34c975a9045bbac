"""SmolLM2-135M, converted, says what llama.cpp and transformers say of the same weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.chat.model import version
from models.decoder import BlockFolder, Decoder, Message, Sampling, Sizes, Turn
from models.decoder.network import Slab
from models.decoder.proving import prefill
from models.device import Device

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).parent
PEER = json.loads((GOLDEN / "llama_cpp_smollm2.json").read_text())["replies"]
TORCH = json.loads((GOLDEN / "transformers_smollm2.json").read_text())["replies"]
EVERY = 384
"""Of a prompt's logits one in so many is in that file."""
SURE = 0.02
"""Logits between the first and the second choice; below, both are right: llama.cpp's KV is fp16."""


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    blocks = BlockFolder(tmp_path_factory.mktemp("kv"), 1 << 30)
    decoder = Decoder(version("fp32"), Device.of("cpu"), Sizes(slots=4, window=1024), blocks)
    yield decoder
    decoder.close()
    decoder.join()


def asked(decoder: Decoder, text: str, **sampling: Any) -> Turn:
    return Turn(
        session=text, tokens=decoder.render([Message("user", text)]), sampling=Sampling(max_tokens=24, **sampling)
    )


def test_its_tokenizer_and_template_write_what_llama_cpp_writes(fp32: Decoder) -> None:
    for reply in PEER:
        assert list(fp32.encode(reply["text"])) == reply["plain"]
        assert list(fp32.render([Message("user", reply["text"])])) == reply["prompt"]


async def test_twenty_greedy_replies_are_llama_cpps(fp32: Decoder) -> None:
    replies = [fp32.submit(asked(fp32, reply["text"])) for reply in PEER]
    await asyncio.gather(*(reply.result() for reply in replies))
    for got, peer in zip(replies, PEER, strict=True):
        unsure = next((n for n, margin in enumerate(peer["margins"]) if margin < SURE), len(peer["reply"]))
        assert got.tokens[:unsure] == peer["reply"][:unsure], peer["text"]


async def test_twenty_greedy_replies_and_their_first_logits_are_those_of_transformers(fp32: Decoder) -> None:
    """All of a reply: both compute in float32, and its closest choice is ahead by .002 logits."""
    slab = Slab(fp32._loop._slab._network, 1, 256)
    for theirs, peer in zip(TORCH, PEER, strict=True):
        asks = asked(fp32, peer["text"])
        one = fp32.submit(asks)
        await one.result()
        assert list(asks.tokens) == peer["prompt"]
        assert one.tokens == theirs["reply"], peer["text"]
        slab.clear(0)
        assert np.abs(prefill(slab, 0, peer["prompt"])[::EVERY] - np.array(theirs["logits"])).max() < 1e-3


async def test_rounded_blocks_move_logits_by_less_than_a_hundredth(fp32: Decoder) -> None:
    """Restored fp16 blocks against keys and values that stayed."""
    slab = fp32._loop._slab
    context = fp32.encode("The sea is a body of salt water that covers most of the Earth. " * 30)[:400]
    turn = Turn(session="stays", tokens=context, sampling=Sampling(max_tokens=1))
    await fp32.submit(turn).result()
    await fp32.save("stays")
    for name in "abcd":
        await fp32.submit(asked(fp32, name)).result()
    usage = await fp32.submit(turn).result()
    assert usage.restored == 384
    slot = next(one.slot for one in fp32._loop._keeper.residents.values() if one.session == "stays")
    assert int(slab.lengths[slot]) == 400
    token = np.array([[context[-1]]])
    rounded = slab.run(token, slot, [0])[0]
    await fp32.forget("stays")
    await fp32.submit(turn).result()
    slot = next(one.slot for one in fp32._loop._keeper.residents.values() if one.session == "stays")
    assert np.abs(slab.run(token, slot, [0])[0] - rounded).max() < 1e-2
    await fp32.forget("stays")


async def test_int4_in_float32_says_the_same(fp32: Decoder) -> None:
    """The file's own blocks, computed exactly: other rounding errors alone."""
    import tempfile

    from examples.chat.model import gguf
    from models.convert.gguf import convert

    with tempfile.TemporaryDirectory() as folder:
        exact = convert(gguf(), Path(folder), name="smollm2", version="exact", weights="int4", accuracy=1)
        decoder = Decoder(exact, Device.of("cpu"), Sizes(slots=4, window=256))
    for reply in PEER[:6]:
        one = decoder.submit(asked(decoder, reply["text"]))
        await one.result()
        unsure = next((n for n, margin in enumerate(reply["margins"]) if margin < SURE), len(reply["reply"]))
        assert one.tokens[:unsure] == reply["reply"][:unsure]
    decoder.close()
    decoder.join()
