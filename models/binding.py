"""How a session is asked through buffers that are bound to it: what a GPU needs, and equal to asking it plainly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.buffers import Buffers, Pin
from models.engine import Array, Arrays


class Binding:
    """One session's inputs and outputs in buffers of this machine. One run at a time: a thread each.

    A plain run lets ONNX Runtime copy from and to memory that the system may move, which a GPU can't read by itself:
    each copy then waits for one more. Here rows are copied into pinned memory, and answers come back into it.
    """

    def __init__(self, session: Any, outputs: Sequence[str], pin: Pin = lambda size: None) -> None:
        """session: ONNX Runtime's. outputs: those that are read."""
        self._session = session
        self._binding = session.io_binding()
        self._outputs = tuple(outputs)
        self._buffers = Buffers(pin)
        self._rows: dict[str, tuple[tuple[int, ...], Any]] = {}
        """Output -> (shape of a row, dtype), once a run has shown that its rows are the inputs' rows."""

    @property
    def pinned(self) -> bool:
        """Whether all of its buffers are pinned."""
        return self._buffers.pinned

    def run(self, inputs: Arrays, rows: int) -> dict[str, Array]:
        """Computes the outputs; arrays of the caller's own, which later runs leave alone. Raises what the session does.

        inputs: numbers or booleans; texts can't be bound.
        """
        binding = self._binding
        for name, array in inputs.items():
            kept = self._buffers.array(f"in {name}", array.shape, array.dtype)
            kept[...] = array
            binding.bind_cpu_input(name, kept)
        bound = {name: self._bind(name, rows) for name in self._outputs}
        binding.synchronize_inputs()
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        computed = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        return {name: self._read(name, computed[name], bound[name], rows) for name in self._outputs}

    def _bind(self, name: str, rows: int) -> Array | None:
        """The buffer that the output goes to; None in a first run, whose output comes in memory of its own."""
        if name not in self._rows:
            self._binding.bind_output(name, "cpu")
            return None
        row, dtype = self._rows[name]
        kept = self._buffers.array(f"out {name}", (rows, *row), dtype)
        self._binding.bind_output(name, "cpu", 0, dtype, kept.shape, kept.ctypes.data)
        return kept

    def _read(self, name: str, computed: Any, kept: Array | None, rows: int) -> Array:
        if kept is not None:
            return kept.copy()
        array: Array = np.array(computed.numpy())
        if array.shape[:1] == (rows,):
            self._rows[name] = (array.shape[1:], array.dtype.type)
        return array
