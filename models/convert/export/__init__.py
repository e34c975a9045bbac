"""What torch knows and models/embedder/convert.py doesn't, through its ONNX exporter: encoders of
sentence-transformers, text classifiers of transformers, cross-encoders of both.

Needs the extra `export`; no worker imports it.
"""

from __future__ import annotations

from models.convert.export.classifier import classifier
from models.convert.export.embedder import embedder
from models.convert.export.reranker import reranker

__all__ = ["classifier", "embedder", "reranker"]
