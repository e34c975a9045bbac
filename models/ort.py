"""The one place that imports ONNX Runtime, so that what must be true before the import always is.

Linux builds since 1.31 embed a telemetry uploader that is on by default; it reads this variable when it is loaded.
"""

from __future__ import annotations

import os
from typing import Final

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as runtime

__all__ = ["QUIET", "runtime"]

QUIET: Final = 3
"""ONNX Runtime's severity of errors: its warnings go to stderr past every log setting."""
