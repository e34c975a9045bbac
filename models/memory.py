"""How much memory is left on this machine, and in the container that we may be in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")
"""Of version 2, as a container sees its own."""


def available(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be taken before the machine swaps or the container's bound is met. None where no one says so."""
    rooms = [room for room in (_of_machine(meminfo), _of_container(cgroup)) if room is not None]
    return min(rooms, default=None)


def _of_machine(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):
        return None


def _of_container(cgroup: Path) -> int | None:
    try:
        most, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(0, most - used + int(stat["inactive_file"]))  # cached files, which give way
    except (OSError, LookupError, ValueError):  # no bound is the word "max"
        return None
