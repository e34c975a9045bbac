"""Folders as Hugging Face keeps models, read without torch: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

from models.convert.safetensors.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
