"""Texts to a graph over tokens, for a version that answers observations: what stands before it is its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from core.errors import ManifestError
from models.embedder.feed import BATCH, Feed
from models.embedder.tokens import Tokens
from models.embedding import TOKENIZER
from models.engine import Array, Arrays
from models.folder import ModelFolder
from models.reading import Reading

BATCHES: Final = (1, BATCH)
"""Rows of first runs: no run of the graph is larger."""


class Reader:
    """One version's. An answer depends on its neighbours by rounding alone (below 1e-6)."""

    def __init__(self, folder: ModelFolder, reading: Reading, session: Any) -> None:
        """Raises ManifestError for a tokenizer or a graph that isn't one."""
        self._tokens = Tokens(folder.path / TOKENIZER, reading.tokens)
        self._session, self._feed = session, Feed(session, folder.identity)
        self._longest = "a " * reading.tokens
        self._who = folder.identity

    def compute(self, outputs: Sequence[str], inputs: Arrays) -> dict[str, Array]:
        """inputs: one of (n, 1) texts. Returns outputs of n rows. Raises what ONNX Runtime raises."""
        (column,) = inputs.values()
        texts = [str(text) for text in column[:, 0]]
        found: dict[str, Array] = {}
        for run in self._feed.runs(self._tokens.encode(texts)):
            for name, part in zip(outputs, self._session.run(list(outputs), run.feed), strict=True):
                if name not in found:
                    found[name] = np.empty((len(texts), *part.shape[1:]), part.dtype)
                found[name][run.rows] = part
        return found

    def check_longest(self, outputs: Sequence[str]) -> None:
        """Runs two texts of the full length: no golden example need be one. Raises ManifestError."""
        for run in self._feed.runs(self._tokens.encode([self._longest] * 2)):
            try:
                self._session.run(list(outputs), run.feed)
            except Exception as error:
                raise ManifestError(f"{self._who}: a text of {run.mask.shape[1]} tokens fails: {error}") from error
