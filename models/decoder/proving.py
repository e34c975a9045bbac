"""What a decoder must prove before it answers: that it runs in every form, and replies as its manifest says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from core.errors import GoldenMismatchError, ManifestError
from models.decoder.network import Floats, Slab
from models.language import GoldenReply

CHUNK = 64
"""New tokens of one run of one session: a tick's length is bounded by it."""


def chunk_of(remaining: int) -> int:
    """How many of the remaining tokens the next run takes. A single one is never left alone: attention computes one
    query by another kernel, whose last bits differ, and KV must not depend on how a context was cut."""
    return CHUNK - 1 if remaining == CHUNK + 1 else min(CHUNK, remaining)


def prefill(slab: Slab, slot: int, tokens: Sequence[int]) -> Floats:
    """Computes tokens on top of a slot, a chunk at a time. Returns the last one's logits, (vocabulary,)."""
    logits = np.empty((0, 0), np.float32)
    begin = 0
    while begin < len(tokens):
        part = tokens[begin : begin + chunk_of(len(tokens) - begin)]
        begin += len(part)
        logits = slab.run(np.array([part], np.int64), slot, [len(part) - 1] if begin == len(tokens) else [])
    last: Floats = logits[0]
    return last


def greedy(slab: Slab, prompt: Sequence[int], count: int) -> Iterator[Floats]:
    """The logits of every token of a greedy reply in slot 0, which is cleared before."""
    slab.clear(0)
    logits = prefill(slab, 0, prompt)
    for step in range(count):
        yield logits
        if step + 1 < count:
            logits = slab.run(np.array([[logits.argmax()]], np.int64), 0, [0])[0]


def warm_up(slab: Slab, who: str) -> None:
    """Runs a whole chunk, a few tokens on top of it, and one token in all slots at once. Raises ManifestError."""
    try:
        prefill(slab, 0, [0] * (min(CHUNK + 3, slab.window)))
        logits = slab.run(np.zeros((slab.slots, 1), np.int64), 0, list(range(slab.slots)))
    except Exception as error:
        raise ManifestError(f"{who}: a first run fails: {error}") from error
    if not np.isfinite(logits).all():
        raise ManifestError(f"{who}: a first run gives logits that are not finite")
    for slot in range(slab.slots):
        slab.clear(slot)


def check_golden(slab: Slab, golden: Sequence[GoldenReply], who: str) -> None:
    """Makes the golden replies anew. Raises GoldenMismatchError that names the first that differs, and where."""
    for number, example in enumerate(golden):
        if len(example.prompt) + len(example.reply) > slab.window:
            continue
        try:
            logits = list(greedy(slab, example.prompt, len(example.reply)))
        except Exception as error:
            raise GoldenMismatchError(f"{who}: golden[{number}] can't be computed: {error}") from error
        got = [int(row.argmax()) for row in logits]
        if got != list(example.reply):
            place = next(place for place, pair in enumerate(zip(got, example.reply, strict=True)) if pair[0] != pair[1])
            raise GoldenMismatchError(
                f"{who}: golden[{number}].reply[{place}] is {example.reply[place]}, but the model says {got[place]}"
            )
    slab.clear(0)
