"""Devices that models can run on beside the CPU, an open list: what each is called, asked for with, and tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from models import cuda
from models.buffers import Bytes


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device."""

    provider: str
    """ONNX Runtime's name for what computes there."""
    options: Callable[[int, int | None], dict[str, Any]]
    """(index, most bytes of a session's arena or None) -> the provider's options."""
    prepare: Callable[[], None]
    """What has to be done before the first session there."""
    used: Callable[[int], int | None]
    """Index -> bytes of the device's memory that are taken, by whomever; None where nobody says."""
    pinned: Callable[[int, int], Bytes | None]
    """(index, bytes) -> so much memory of this machine that the device reads by itself; None where there is none."""


def _cuda(index: int, memory: int | None) -> dict[str, Any]:
    """An arena that grows by what is asked for: by default it doubles, so that a version would hold up to twice what it
    needs, beyond any budget."""
    capped = {} if memory is None else {"gpu_mem_limit": memory}
    return {"device_id": index, "arena_extend_strategy": "kSameAsRequested", **capped}


ACCELERATORS: Final[Mapping[str, Accelerator]] = {
    "cuda": Accelerator("CUDAExecutionProvider", _cuda, cuda.prepare, cuda.used, cuda.pinned),
}
"""By the name that HOMUNCULUS_DEVICE has for it; `auto` takes the first that this ONNX Runtime was built for."""
