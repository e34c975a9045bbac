"""A tiny real model, and decoders that answer with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from models.decoder import Blocks, Decoder, Sampling, Sizes, Turn, Usage
from models.device import Device
from models.folder import ModelFolder
from tests.babbler import NAME, publish

Make = Callable[..., Decoder]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the babbler, versions 1 and 2."""
    path = tmp_path_factory.mktemp("store")
    publish(path, "1", seed=1)
    publish(path, "2", seed=2)
    return path


@pytest.fixture
def make(store: Path) -> Iterator[Make]:
    """Loads decoders, which end with the test."""
    made: list[Decoder] = []

    def load(
        slots: int = 4, window: int = 512, *, version: str = "1", blocks: Blocks | None = None, **sizes: int
    ) -> Decoder:
        folder = ModelFolder.open(store / NAME / version, NAME, version)
        decoder = Decoder(folder, Device.of("cpu"), Sizes(slots, window, threads=1, **sizes), blocks)
        made.append(decoder)
        return decoder

    yield load
    for decoder in made:
        decoder.close()
        decoder.join()


@contextmanager
def paused(decoder: Decoder) -> Iterator[None]:
    """What is submitted meanwhile arrives in one tick."""
    gate = threading.Event()
    decoder._loop.put(lambda: None if gate.wait(10) else pytest.fail("nobody has opened the gate"))
    try:
        yield
    finally:
        gate.set()


def words(decoder: Decoder, text: str, size: int) -> tuple[int, ...]:
    """As many tokens of text as are asked for, which begin differently for different texts."""
    return decoder.encode(f"{text} " * size)[:size]


async def say(
    decoder: Decoder, session: str, tokens: tuple[int, ...], count: int = 8, *, exact: bool = False, **sampling: object
) -> tuple[list[int], Usage]:
    """A turn's reply, and what it took. It has `count` tokens unless it ends by itself."""
    asked = Sampling(max_tokens=count, **sampling)  # type: ignore[arg-type]
    generation = decoder.submit(Turn(session=session, tokens=tokens, sampling=asked, exact=exact))
    usage = await generation.result()
    return generation.tokens, usage
