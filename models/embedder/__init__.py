"""Texts to vectors, without torch: a converter of BERT-like encoders, and the runtime that a worker has."""

from __future__ import annotations

from models.embedder.embedder import Embedder
from models.embedder.tokens import Tokens

__all__ = ["Embedder", "Tokens"]
