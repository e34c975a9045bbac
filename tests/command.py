"""Operator commands as people type them, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from core.settings import Settings
from tests.worker import ROOT


def command(*words: str, stdin: str = "", **settings: Any) -> subprocess.CompletedProcess[str]:
    """`faust -A app WORDS`, with these settings of HOMUNCULUS_* in lower case."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")}
    environment |= {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app", *words],
        cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def words_of(ours: Settings) -> dict[str, Any]:
    """The settings, as environment variables say them."""
    names = ("broker", "topic_prefix", "app_id", "partitions", "data_dir", "model_store")
    return {name: getattr(ours, name) for name in names}
