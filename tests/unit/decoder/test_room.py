"""What a real model's sessions take of memory: what they may, whoever comes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.chat.model import version
from models.decoder import BlockFolder, Decoder, Sampling, Sizes, Turn
from models.device import Device

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_memory_stays_within_the_budget_and_a_tenth_whoever_comes(tmp_path: Path) -> None:
    """SmolLM2-135M: 16 sessions of 250 tokens and replies, with room for 2,048 tokens together."""
    blocks = BlockFolder(tmp_path, 1 << 30)
    decoder = await asyncio.to_thread(
        Decoder, version("fp32"), Device.of("cpu"), Sizes(8, 1024, tokens=2048, threads=1), blocks
    )
    try:
        budget, begun = 2048 * decoder.token_bytes, anonymous()
        chance, largest = np.random.default_rng(1), 0
        for session in [*range(16), *range(4)]:
            tokens = tuple(map(int, chance.integers(20, 40_000, 250)))
            turn = Turn(session=f"s{session}", tokens=tokens, sampling=Sampling(max_tokens=4))
            await decoder.submit(turn).result()
            largest = max(largest, anonymous() - begun)
            assert decoder.figures.held_tokens <= 2048
        assert decoder.figures.evicted >= 8
        assert 0.8 * budget < largest < 1.1 * budget
    finally:
        decoder.close()
        decoder.join()


def anonymous() -> int:
    """Bytes of this process that are in memory and no file's."""
    told = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in told.splitlines() if line.startswith("RssAnon")))
