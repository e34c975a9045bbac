"""One embedder version in ONNX Runtime, verified: texts in, a vector each out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import GoldenMismatchError, ManifestError, UsageError
from models.budget import Share
from models.device import Device
from models.embedder.feed import BATCH, Feed
from models.embedder.tokens import Tokens
from models.embedding import TOKENIZER, Embedding
from models.engine import Array, Arrays
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.precision import FP32
from models.session import opened

TEXT: Final = "text"
VECTOR: Final = "vector"

Vectors = NDArray[np.float32]
"""(n, size), a row a text."""


class Embedder:
    """An Engine: {"text": (n,) of str} -> {"vector": (n, size) float32}. A text's vector doesn't depend on its
    neighbours, but for rounding (below 1e-6)."""

    def __init__(
        self,
        folder: ModelFolder,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None = None,
        warming: Callable[[], None] = lambda: None,
        precision: str = FP32,
        share: Share | None = None,
    ) -> None:
        """Loads and verifies, which takes its time: call it off the event loop.

        aside: the thread of texts that must be in nobody's way. warming: told before the first run. precision: there is
        fp32 alone, since others make a text's vector depend on its neighbours. share: what it may hold of the device's
        memory, which is free again once it is closed, or the constructor has failed. Raises ManifestError when graph or
        tokenizer can't be loaded or contradict the manifest, ProviderMissingError, GoldenMismatchError.
        """
        self.folder = folder
        self.manifest = folder.manifest
        self.identity = folder.key(precision)
        self.share = share
        self._session: Any = None
        try:
            self._open(folder, device, thread, aside, warming)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        folder: ModelFolder,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None,
        warming: Callable[[], None],
    ) -> None:
        self.spec = _spec(folder)
        self.tokens = Tokens(folder.path / TOKENIZER, self.spec.tokens)
        self._thread = thread
        self._aside = aside or thread
        session = opened(folder.onnx, device, folder.identity, self.share.most if self.share else None)
        self._session = session
        self._feed = Feed(session, folder.identity)
        if self.spec.output not in (outputs := [one.name for one in session.get_outputs()]):
            raise ManifestError(f"{folder.identity}: the graph has no output {self.spec.output!r}, only {outputs}")
        warming()
        self._warm_up()
        self._check_golden()

    # -- what callers ask ---------------------------------------------------------------------------------------------

    async def question(self, text: str) -> NDArray[np.float32]:
        """(size,): a question's vector, with the version's prefix for questions."""
        vectors = await self._embedded([self.spec.question + text], aside=False)
        return np.asarray(vectors[0])

    async def passages(self, texts: Sequence[str], *, aside: bool = True) -> Vectors:
        """(n, size): passages' vectors, with the version's prefix for them. aside: computed where they are in nobody's
        way; else as questions are, since somebody waits."""
        return await self._embedded([self.spec.passage + text for text in texts], aside=aside)

    async def _embedded(self, texts: list[str], aside: bool) -> Vectors:
        if not texts:
            return np.empty((0, self.spec.size), np.float32)
        column = np.empty(len(texts), object)
        column[:] = texts
        return (await self.run({TEXT: column}, aside=aside))[VECTOR]

    # -- an engine ----------------------------------------------------------------------------------------------------

    async def run(self, inputs: Arrays, *, aside: bool = False) -> Arrays:
        """Computes on a thread, perhaps together with other callers' texts. Raises what ONNX Runtime raises."""
        return await (self._aside if aside else self._thread).run(self, inputs)

    def compute(self, inputs: Arrays) -> dict[str, Array]:
        """Computes where it is called. Raises what ONNX Runtime raises, UsageError after close."""
        return {VECTOR: self.vectors([str(text) for text in inputs[TEXT]])}

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """(n, size): as they are, without a prefix."""
        session = self._session
        if session is None:
            raise UsageError(f"{self.manifest.identity} is closed; hold it with LiveModels.using while it computes")
        result = np.empty((len(texts), self.spec.size), np.float32)
        for run in self._feed.runs(self.tokens.encode(texts)):
            (output,) = session.run([self.spec.output], run.feed)
            result[run.rows] = pooled(np.asarray(output, np.float32), run.mask, self.spec)
        return result

    def close(self) -> None:
        """Frees the session; ONNX Runtime keeps its memory until then."""
        self._session = None
        if self.share is not None:
            self.share.free()

    # -- proving ------------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """One word, eight of them, and texts of the full length. Raises ManifestError."""
        for texts in (["a"], ["a"] * BATCH, ["a " * self.spec.tokens] * 2):
            try:
                vectors = self.vectors(texts)
            except Exception as error:
                raise ManifestError(f"{self.manifest.identity}: a first run fails: {error}") from error
            if not np.isfinite(vectors).all():
                raise ManifestError(f"{self.manifest.identity}: a first run gives something that is not finite")

    def _check_golden(self) -> None:
        for index, example in enumerate(self.spec.golden):
            (got,) = self.vectors([self.spec.passage + example.text])
            off = float(np.abs(got - np.asarray(example.vector, np.float32)).max())
            if not off <= example.tolerance:
                raise GoldenMismatchError(
                    f"{self.manifest.identity}: embedding.golden[{index}] differs by {off:.2g} in a component, "
                    f"{example.tolerance} is allowed"
                )


def pooled(output: NDArray[np.float32], mask: NDArray[np.int64], spec: Embedding) -> Vectors:
    """(n, size): the vectors of a run's texts. output: as spec.output says; mask: (n, tokens), 1 where a token is.

    Raises ValueError for an output of another shape.
    """
    shape = (len(mask), spec.size) if spec.pooling == "graph" else (*mask.shape, spec.size)
    if output.shape != shape:
        raise ValueError(f"output {spec.output!r} has shape {output.shape}; the manifest says {shape}")
    vectors = output
    if spec.pooling == "mean":
        share = mask.astype(np.float32) / np.maximum(1, mask.sum(axis=1, keepdims=True))
        vectors = np.einsum("nt,nts->ns", share, output).astype(np.float32)
    elif spec.pooling == "cls":
        vectors = output[:, 0]
    if spec.normalised:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _spec(folder: ModelFolder) -> Embedding:
    if folder.manifest.embedding is None:
        raise ManifestError(f"{folder.identity} is a {folder.manifest.kind}, no embedder")
    return folder.manifest.embedding
