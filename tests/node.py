"""OpenAI's client for JavaScript: another implementation than the one for Python, out of npm's registry, once."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from examples.package import CACHE

OPENAI: Final = "openai@5.23.2"
"""Apache-2.0; it depends on nothing else."""
SHA512: Final = "MQBzmTulj+MM5O8SKEk/gL8a7s5mktS9zUtAkU257WjvobGc9nKcBuVwjyEEcb9SI8a8Y2G/mzn3vm9n1Jlleg=="
FETCH_S: Final = 300
"""Of a download."""


def folder_with_openai() -> Path:
    """A folder whose scripts may import it. Skips where there is no node, or the registry can't be reached."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm aren't installed")
    target = CACHE / "node" / OPENAI
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as part:
            command = ["npm", "pack", OPENAI, "--silent", "--pack-destination", part]
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False, cwd=part)
            if done.returncode:
                pytest.skip(f"npm can't fetch {OPENAI}: {done.stderr.strip()[-200:]}")
            [archive] = Path(part).glob("*.tgz")
            assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == SHA512
            with tarfile.open(archive) as packed:
                packed.extractall(f"{part}/made/node_modules", filter="data")
            os.rename(f"{part}/made/node_modules/package", f"{part}/made/node_modules/openai")
            os.rename(f"{part}/made", target)
    return target


def ran(script: str, **environment: str) -> Any:
    """What a script has printed."""
    folder = folder_with_openai()
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=folder) as file:
        file.write(script)
        file.flush()
        done = subprocess.run(
            ["node", file.name],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
