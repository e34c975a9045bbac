"""A thread that lets others pass: of work that nobody waits for by the millisecond."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

NICEST: Final = 19
"""The system's own bound."""


def step_back(by: int) -> None:
    """Makes the calling thread nicer than it is, and those that it starts from now on, where the system can do so for
    one thread; elsewhere it would be the whole process, so nothing happens."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(NICEST, os.getpriority(os.PRIO_PROCESS, thread) + by))


def made_nicely(make: Callable[[], T], by: int) -> T:
    """Makes something whose own threads are to be nicer, on a thread that ends then: one can't take it back. Raises
    what `make` raises."""
    with ThreadPoolExecutor(1, initializer=step_back, initargs=(by,)) as thread:
        return thread.submit(make).result()
