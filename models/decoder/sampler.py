"""Chooses the next token from logits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.errors import GenerationError, SamplingError
from models.decoder.turn import Sampling

Floats = NDArray[np.float32]

MOST_STOPS: Final = 16
LONGEST_STOP: Final = 500
COLDEST: Final = 1e-30
"""Of temperatures: what is colder would be 0 in float32."""


def check_sampling(sampling: Sampling) -> None:
    """Raises SamplingError that names the first setting out of range."""
    ranges = {
        "temperature": (0.0 <= sampling.temperature <= 100.0, "from 0 to 100"),
        "top_p": (0.0 < sampling.top_p <= 1.0, "above 0, to 1"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "min_p": (0.0 <= sampling.min_p <= 1.0, "from 0 to 1"),
        "repetition_penalty": (0.0 < sampling.repetition_penalty < math.inf, "above 0"),
        "max_tokens": (sampling.max_tokens >= 1, "1 or more"),
        "seed": (sampling.seed is None or 0 <= sampling.seed < 2**63, "from 0 to 2 ** 63 - 1"),
    }
    for name, (right, wanted) in ranges.items():
        if not right:
            raise SamplingError(f"{name} is {getattr(sampling, name)!r}; it must be {wanted}")
    if len(sampling.stop) > MOST_STOPS or any(not 0 < len(stop) <= LONGEST_STOP for stop in sampling.stop):
        raise SamplingError(f"stop may have {MOST_STOPS} strings, of 1 to {LONGEST_STOP} characters each")


class Sampler:
    """One reply's choices. The nth draw depends on the seed and n alone: a resumed reply goes on as it would have."""

    def __init__(self, sampling: Sampling, seed: int, context: Iterable[int]) -> None:
        """context: tokens that the repetition penalty begins with."""
        self._sampling, self._seed = sampling, seed
        self._seen: NDArray[np.int64] | None = None
        """Tokens, each once."""
        if sampling.repetition_penalty != 1.0:
            self._seen = np.unique(np.fromiter(context, np.int64))

    def saw(self, token: int) -> None:
        """A token has joined the reply."""
        if self._seen is not None and token not in self._seen:
            self._seen = np.append(self._seen, token)

    def choose(self, logits: Floats, step: int) -> int:
        """The token for logits of (vocabulary,), which may be -inf where a token is forbidden; they are changed.

        step: number of the reply's tokens so far. The order of what is done to the logits is that of Hugging Face's
        transformers: penalty (Keskar et al. 2019), temperature, top-k, top-p (Holtzman et al. 2019), min-p (Nguyen et
        al. 2024). Raises GenerationError where they aren't numbers.
        """
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise GenerationError("the model gave logits that are not finite")
        sampling = self._sampling
        if self._seen is not None:
            seen = logits[self._seen]
            logits[self._seen] = np.where(
                seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty
            )
            best = int(logits.argmax())
        if sampling.temperature == 0 or sampling.top_k == 1:
            return best
        tokens, weights = self._likely(logits, best)
        bounds = np.cumsum(weights.astype(np.float64))
        at = int(np.searchsorted(bounds, self._draw(step) * bounds[-1], side="right"))
        return int(tokens[min(at, len(tokens) - 1)])

    def _likely(self, logits: Floats, best: int) -> tuple[NDArray[np.int64], Floats]:
        """The tokens that may be drawn and their weights, likeliest first where some are left out. In float32 while
        there are many of them: that takes a fifth of the time, and the event loop waits for some of it."""
        sampling = self._sampling
        weights = np.subtract(logits, logits[best])
        np.exp(np.divide(weights, np.float32(max(sampling.temperature, COLDEST)), out=weights), out=weights)
        tokens = np.arange(len(weights), dtype=np.int64)
        if 0 < sampling.top_k < len(weights):
            kept = np.argpartition(-weights, sampling.top_k - 1)[: sampling.top_k]
            kept.sort()
            tokens, weights = tokens[kept], weights[kept]
        if sampling.top_p < 1:
            tokens, weights = _nucleus(tokens, weights, sampling.top_p)
        if sampling.min_p > 0:
            likely = np.flatnonzero(weights >= sampling.min_p * weights.max())
            tokens, weights = tokens[likely], weights[likely]
        return tokens, weights

    def _draw(self, step: int) -> float:
        return float(np.random.Generator(np.random.Philox(key=self._seed, counter=step)).random())


def _nucleus(tokens: NDArray[np.int64], weights: Floats, top_p: float) -> tuple[NDArray[np.int64], Floats]:
    """As few of the likeliest as reach top_p together."""
    total = float(weights.sum(dtype=np.float64))
    # All below an equal part of what is left out are left out: together they are less than that.
    candidates = np.flatnonzero(weights >= total * (1 - top_p) / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order], dtype=np.float64), top_p * total)) + 1
    order = order[:count]
    return tokens[order], weights[order]
