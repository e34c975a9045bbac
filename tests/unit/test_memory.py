"""How much memory is left: of the machine and the container, the smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.memory import available


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       8000000 kB\nMemFree:         100000 kB\nMemAvailable:    4000000 kB\n")
    return path


def container(folder: Path, most: str) -> Path:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text("600000000\n")
    (folder / "memory.stat").write_text("anon 300000000\nfile 300000000\ninactive_file 200000000\n")
    return folder


def test_without_a_container_it_is_what_the_machine_has(meminfo: Path, tmp_path: Path) -> None:
    assert available(meminfo, tmp_path) == 4_096_000_000


def test_a_containers_bound_counts_and_its_cached_files_give_way(meminfo: Path, tmp_path: Path) -> None:
    assert available(meminfo, container(tmp_path, "1000000000")) == 600_000_000
    assert available(meminfo, container(tmp_path, "100000000")) == 0
    assert available(tmp_path / "none", container(tmp_path, "1000000000")) == 600_000_000


def test_a_container_without_a_bound_is_none(meminfo: Path, tmp_path: Path) -> None:
    assert available(meminfo, container(tmp_path, "max")) == 4_096_000_000


def test_where_no_one_says_it_is_not_known(tmp_path: Path) -> None:
    assert available(tmp_path / "none", tmp_path / "none") is None
