"""all-MiniLM-L6-v2, converted without torch, computes what sentence-transformers computes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from examples.knowledge.minilm import minilm
from models.device import Device
from models.embedder import Embedder
from models.inference import InferenceThread

PEER = json.loads((Path(__file__).parent / "sentence_transformers_minilm.json").read_text())["texts"]


def test_forty_texts_have_the_vectors_of_sentence_transformers() -> None:
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())
    theirs = np.array([np.frombuffer(base64.b64decode(one["vector"]), "<f4") for one in PEER])
    ours = embedder.vectors([one["text"] for one in PEER])
    assert theirs.shape == (40, embedder.spec.size)
    assert max(len(one.ids) for one in embedder.tokens.encode([one["text"] for one in PEER])) == embedder.spec.tokens
    assert np.abs(ours - theirs).max() < 1e-5
