"""A question and passages to scores: a cross-encoder, which reads both at once, as the runtime that a worker has."""

from __future__ import annotations

from models.reranker.pairs import Pairs
from models.reranker.reranker import Reranker

__all__ = ["Pairs", "Reranker"]
