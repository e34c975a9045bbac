"""What a message wants, as a classifier says that takes the embedder's vector: for rules, before any other model."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from core.errors import NoModelError, UnknownModelError
from engine.engine import Engine
from models.knowledge.knowledge import Asked
from models.manifest import Kind, Manifest

log = logging.getLogger(__name__)


class Intents:
    """The intent model of a worker. Without one, or while it isn't live, a message has no intent: conditions that look
    at it aren't true."""

    def __init__(self, engine: Engine) -> None:
        self._models = engine.models
        self._name = engine.settings.intent_model
        self._embedder = engine.settings.embedder
        self._said = ""
        """The last reason why there was none: each is logged once."""

    async def of(self, asked: Asked) -> dict[str, Any] | None:
        """{"label", "confidence", "model"}: confidence as predictions have it (models/confidence.py). asked: the
        message's vector."""
        if self._name is None:
            return None
        if asked.vector is None:
            return self._none("no embedder is live on this worker")
        try:
            with self._models.using(self._name) as version, self._models.embedding(self._embedder) as embedder:
                if embedder is None or embedder.identity != asked.embedder:
                    return self._none("no embedder is live on this worker")
                if why := mismatch(version.manifest, embedder.manifest.identity, len(asked.vector)):
                    return self._none(why)
                [name] = version.manifest.inputs
                scores = await version.predict({name: asked.vector[None].astype(np.float32)})
        except (NoModelError, UnknownModelError) as error:
            return self._none(str(error))
        except Exception as error:  # ONNX Runtime's own
            return self._none(f"{self._name} failed: {error!r}")
        if len(scores.broken) or scores.confidence is None:
            return self._none(f"{self._name} gave no usable score")
        self._said = ""
        return {
            "label": scores.labels[int(scores.best[0])],
            "confidence": float(scores.confidence[0]),
            "model": version.manifest.identity,
        }

    def _none(self, why: str) -> dict[str, Any] | None:
        if why != self._said:
            log.warning("Messages have no intent: %s", why)
            self._said = why
        return None


def field(embedder: str, component: int) -> str:
    """What a manifest names the input that is a component of a vector. embedder: NAME@VERSION."""
    return f"{embedder}[{component}]"


def mismatch(manifest: Manifest, embedder: str, size: int) -> str | None:
    """Why a model can't tell intents from that embedder's vectors, if it can't."""
    inputs = list(manifest.inputs.values())
    if manifest.kind is not Kind.CLASSIFIER or len(inputs) != 1:
        return f"{manifest.identity} is no classifier with one input"
    names = [one.name for one in inputs[0].fields]
    if names != [field(embedder, component) for component in range(size)]:
        return f"{manifest.identity} takes {names[0]} ..., not the {size} components of {embedder}'s vectors"
    return None
