"""One reranker version in ONNX Runtime, verified: a question and passages in, a score for each passage out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import GoldenMismatchError, ManifestError, RerankError, UsageError
from models.budget import Share
from models.device import Device
from models.embedder.feed import BATCH, Feed
from models.engine import Array, Arrays
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.precision import FP32
from models.ranking import TOKENIZER, Ranking
from models.reranker.pairs import Pairs
from models.session import opened

QUESTION: Final = "question"
PASSAGE: Final = "passage"
SCORE: Final = "score"


class Reranker:
    """An Engine: {"question": (n,) of str, "passage": (n,) of str} -> {"score": (n,) float32}. A pair's score doesn't
    depend on its neighbours, but for rounding."""

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

        thread, aside: where it computes what somebody waits for, and the rest. warming: told before the first run.
        precision: there is fp32 alone. share: what it may hold of the device's memory, which is free again once it is
        closed, or the constructor has failed. Raises ManifestError when graph or tokenizer can't be loaded or
        contradict the manifest, ProviderMissingError, GoldenMismatchError.
        """
        self.folder = folder
        self.manifest = folder.manifest
        self.identity = folder.key(precision)
        self.share = share
        self._thread, self._aside = thread, aside or thread
        self._session: Any = None
        try:
            self._open(folder, device, warming)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: ModelFolder, device: Device, warming: Callable[[], None]) -> None:
        self.spec = _spec(folder)
        self._pairs = Pairs(folder.path / TOKENIZER, self.spec.tokens)
        session = opened(folder.onnx, device, folder.identity, self.share.most if self.share else None)
        self._session = session
        self._feed = Feed(session, folder.identity)
        if self.spec.output not in (outputs := [one.name for one in session.get_outputs()]):
            raise ManifestError(f"{folder.identity}: the graph has no output {self.spec.output!r}, only {outputs}")
        warming()
        self._warm_up()
        self._check_golden()

    # -- what callers ask ---------------------------------------------------------------------------------------------

    async def scores(self, question: str, passages: Sequence[str]) -> NDArray[np.float32]:
        """(n,): how well each passage answers. BATCH pairs at a time, so that others' questions get their turn, and
        whoever is cancelled leaves no more than one run behind. Raises RerankError, and what ONNX Runtime raises."""
        result = np.empty(len(passages), np.float32)
        by_length = sorted(range(len(passages)), key=lambda row: len(passages[row]))
        for begin in range(0, len(by_length), BATCH):
            rows = by_length[begin : begin + BATCH]
            inputs = {QUESTION: _texts([question] * len(rows)), PASSAGE: _texts([passages[row] for row in rows])}
            result[rows] = (await self.run(inputs))[SCORE]
        if not np.isfinite(result).all():
            raise RerankError(f"{self.manifest.identity} gave a score that is not finite")
        return result

    # -- an engine ----------------------------------------------------------------------------------------------------

    async def run(self, inputs: Arrays, *, aside: bool = False) -> Arrays:
        """Computes on a thread, perhaps together with other callers' pairs. Raises as `pairs`."""
        return await (self._aside if aside else self._thread).run(self, inputs)

    def compute(self, inputs: Arrays) -> dict[str, Array]:
        """Computes where it is called. Raises as `pairs`."""
        return {SCORE: self.pairs(list(zip(inputs[QUESTION], inputs[PASSAGE], strict=True)))}

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """(n,): the scores of (question, passage). Raises RerankError for a question that leaves no room, ValueError
        for an output of another shape, UsageError after close, and what ONNX Runtime raises."""
        session = self._session
        if session is None:
            raise UsageError(f"{self.manifest.identity} is closed; hold it with LiveModels.reranking while it computes")
        result = np.empty(len(pairs), np.float32)
        for run in self._feed.runs(self._pairs.encode(pairs)):
            (output,) = session.run([self.spec.output], run.feed)
            if output.shape not in ((len(run.rows),), (len(run.rows), 1)):
                raise ValueError(
                    f"output {self.spec.output!r} has shape {output.shape} for {len(run.rows)} pairs; it must be one "
                    "number each"
                )
            result[run.rows] = output.reshape(-1)
        return result

    def close(self) -> None:
        """Frees the session; ONNX Runtime keeps its memory until then."""
        self._session = None
        if self.share is not None:
            self.share.free()

    # -- proving ------------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """One pair, a run of them, and pairs of the full length. Raises ManifestError."""
        for pairs in ([("a", "a")], [("a", "a")] * BATCH, [("a", "a " * self.spec.tokens)] * BATCH):
            try:
                scores = self.pairs(pairs)
            except Exception as error:
                raise ManifestError(f"{self.manifest.identity}: a first run fails: {error}") from error
            if not np.isfinite(scores).all():
                raise ManifestError(f"{self.manifest.identity}: a first run gives something that is not finite")

    def _check_golden(self) -> None:
        for index, example in enumerate(self.spec.golden):
            (got,) = self.pairs([(example.question, example.passage)])
            if not abs(got - example.score) <= example.tolerance:
                raise GoldenMismatchError(
                    f"{self.manifest.identity}: ranking.golden[{index}] is {got:.6g}, {example.score} within "
                    f"{example.tolerance} is expected"
                )


def _texts(texts: Sequence[str]) -> Array:
    column = np.empty(len(texts), object)
    column[:] = texts
    return column


def _spec(folder: ModelFolder) -> Ranking:
    if folder.manifest.ranking is None:
        raise ManifestError(f"{folder.identity} is a {folder.manifest.kind}, no reranker")
    return folder.manifest.ranking
