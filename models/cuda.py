"""What ONNX Runtime doesn't tell of an NVIDIA GPU, asked of the CUDA runtime that it has loaded."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import weakref
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models import ort

log = logging.getLogger(__name__)

RUNTIMES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_OK: Final = 0
_PORTABLE: Final = 1
"""Pinned for every device of the process (cudaHostAllocPortable)."""


def prepare() -> None:
    """Loads CUDA's libraries where they came as packages of Python; where the system has them, nothing is needed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.runtime.preload_dlls()
    if said.getvalue():
        log.info("CUDA's libraries: %s", " ".join(said.getvalue().split()))


def used(index: int) -> int | None:
    """Bytes of the GPU's memory that are taken, by this process and others. None without a GPU or CUDA runtime."""
    runtime = _runtime()
    if runtime is None or runtime.cudaSetDevice(ctypes.c_int(index)) != _OK:
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) != _OK:
        return None
    return total.value - free.value


def pinned(index: int, size: int) -> NDArray[np.uint8] | None:
    """(size,) of this machine's memory that stays where it is, so that a GPU copies it by itself; given back when the
    last array in it goes. None where there is no such memory."""
    runtime, address = _runtime(), ctypes.c_void_p()
    if runtime is None or runtime.cudaSetDevice(ctypes.c_int(index)) != _OK:
        return None
    if runtime.cudaHostAlloc(ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE)) != _OK:
        return None
    memory = (ctypes.c_uint8 * size).from_address(address.value or 0)
    weakref.finalize(memory, runtime.cudaFreeHost, address).atexit = False  # CUDA is gone by then
    return np.ctypeslib.as_array(memory)


@cache
def _runtime() -> ctypes.CDLL | None:
    for name in RUNTIMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
