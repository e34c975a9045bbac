"""all-MiniLM-L6-v2, the published weights: what its authors say that it computes."""

from __future__ import annotations

import numpy as np

from examples.knowledge.minilm import minilm
from models.device import Device
from models.embedder import Embedder
from models.inference import InferenceThread

PUBLISHED = np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
"""Similarities that the quickstart of sentence-transformers' documentation prints for this model and sentences."""
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


def test_it_computes_the_similarities_that_sentence_transformers_publishes() -> None:
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())  # which computes its golden texts first
    vectors = embedder.vectors(SENTENCES)
    assert np.abs(vectors @ vectors.T - PUBLISHED).max() < 1e-4
    assert len(embedder.spec.golden) == 4
    assert embedder.tokens.count(["a partition " * 300]) == [600]  # the 128 of its tokenizer.json don't count
