"""GGUF files, and folders with safetensors, of the Llama, SmolLM2 and Qwen2 families become decoder folders, without
torch.

Needs the extra `convert`; no worker imports it.
"""

from __future__ import annotations

from models.convert.gguf.folder import convert

__all__ = ["convert"]
