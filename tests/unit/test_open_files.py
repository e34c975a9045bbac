"""Many partitions need many files: a worker asks for what the system allows."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from engine.app import FILES, allow_files


@pytest.fixture
def hard() -> Iterator[int]:
    """What this system allows at most; the test begins with less, and ends as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_may_open_as_many_files_as_the_system_allows(hard: int) -> None:
    allow_files()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == (FILES if hard == resource.RLIM_INFINITY else min(hard, FILES))
