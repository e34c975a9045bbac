"""Threads that let others pass."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from models.nice import made_nicely, step_back

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it for one thread")


def own() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_what_is_made_nicely_has_nicer_threads_and_its_maker_is_as_before() -> None:
    before = own()

    def make() -> list[int]:
        seen: list[int] = []
        started = threading.Thread(target=lambda: seen.append(own()))
        started.start()
        started.join()
        return seen

    assert made_nicely(make, 3) == [before + 3]
    assert own() == before


def test_a_failure_is_the_makers() -> None:
    with pytest.raises(ValueError, match="no"):
        made_nicely(lambda: int("no"), 1)


def test_stepping_back_by_nothing_changes_nothing() -> None:
    before = own()
    step_back(0)
    assert own() == before
