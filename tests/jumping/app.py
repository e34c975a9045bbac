"""The application of tests/timely under a clock that a test sets: the file CLOCK says how many seconds it is off.

For machines without libfaketime. `faust -A tests.jumping.app worker`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_file, _time = Path(os.environ["CLOCK"]), time.time


def jumping() -> float:
    """What time.time() says from now on, to everybody in this process."""
    return _time() + float(_file.read_text())


time.time = jumping
time.time_ns = lambda: int(jumping() * 1e9)

from tests.timely.app import app

__all__ = ["app"]
