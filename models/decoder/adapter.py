"""An adapter: what is added to a language model's linear layers (LoRA, Hu et al. 2021), for each session its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from core.errors import AdapterError, ManifestError
from models import ort
from models.device import CPU
from models.engine import Array
from models.folder import ModelFolder

Matrices = Mapping[str, Array]
"""lora.{layer}.{place}.a (n, in, rank) and .b (n, rank, out): x a b is added. n is 1, or the rows of a batch."""


class Adapter:
    """One verified version. Its model.onnx takes nothing, and gives the matrices."""

    def __init__(self, folder: ModelFolder) -> None:
        """Raises ManifestError for a folder that holds anything else."""
        described = folder.manifest.adapter
        if described is None:
            raise ManifestError(f"{folder.identity} is no adapter, but a {folder.manifest.kind}")
        self.manifest: Final = folder.manifest
        self.identity: Final = folder.sha256
        self.base: Final = described.base
        """sha256 of the version that it changes."""
        self._forms: dict[Any, dict[str, Array]] = {np.dtype(np.float32): _read(folder)}

    def matrices(self, floats: DTypeLike) -> Matrices:
        """In a type of float."""
        form = np.dtype(floats)
        if form not in self._forms:
            single = self._forms[np.dtype(np.float32)]
            self._forms[form] = {name: array.astype(form) for name, array in single.items()}
        return self._forms[form]

    def check(self, places: Mapping[str, tuple[int, int]]) -> None:
        """places: the graph's, with the sizes of what goes in and what comes out. Raises AdapterError where it doesn't
        fit them."""
        matrices = self.matrices(np.float32)
        for name in {name.rpartition(".")[0] for name in matrices}:
            into, out = places.get(name, (0, 0))
            a, b = matrices.get(f"{name}.a"), matrices.get(f"{name}.b")
            if a is None or b is None or a.shape != (1, into, b.shape[1]) or b.shape != (1, a.shape[2], out):
                raise AdapterError(f"adapter {self.manifest.identity} doesn't fit the model at {name}")

    def close(self) -> None:
        """It has nothing but memory."""


class Rows:
    """The adapters of a slab's slots, side by side: a row is written when its slot's adapter is another one."""

    def __init__(self, slots: int, places: Mapping[str, tuple[int, int]], floats: DTypeLike) -> None:
        self._slots, self._places, self._floats = slots, places, floats
        self._ranks: dict[str, int] = {}
        self._arrays: dict[str, Array] = {}
        self._has: list[str | None] = [None] * slots
        self._room = 0
        """How often it has grown."""

    def settle(self, first: int, adapters: Sequence[Adapter | None]) -> str:
        """Neighbouring slots have these adapters from now on. Returns what their matrices are known by: where that is
        the same as before, so are the addresses."""
        if (only := _only(adapters)) is not None:
            return only.identity
        self._grow([adapter for adapter in adapters if adapter is not None])
        for slot, adapter in enumerate(adapters, first):
            wanted = None if adapter is None else adapter.identity
            if self._has[slot] != wanted:
                self._write(slot, {} if adapter is None else adapter.matrices(self._floats))
                self._has[slot] = wanted
        return f"rows {self._room}"

    def matrices(self, first: int, adapters: Sequence[Adapter | None]) -> Matrices:
        """Of slots that are settled: the adapter's own where all have the same."""
        if (only := _only(adapters)) is not None:
            return only.matrices(self._floats)
        return {name: array[first : first + len(adapters)] for name, array in self._arrays.items()}

    def _grow(self, adapters: Iterable[Adapter]) -> None:
        """Makes room for the largest ranks; what was written is written anew then."""
        wanted = dict(self._ranks)
        for adapter in adapters:
            for name, array in adapter.matrices(self._floats).items():
                if name.endswith(".a"):
                    place = name.removesuffix(".a")
                    wanted[place] = max(wanted.get(place, 0), array.shape[2])
        if wanted == self._ranks:
            return
        self._ranks, self._has, self._room = wanted, [None] * self._slots, self._room + 1
        for place, rank in wanted.items():
            into, out = self._places[place]
            self._arrays[f"{place}.a"] = np.zeros((self._slots, into, rank), self._floats)
            self._arrays[f"{place}.b"] = np.zeros((self._slots, rank, out), self._floats)

    def _write(self, slot: int, matrices: Matrices) -> None:
        """A rank that an adapter hasn't is 0 in b: whatever stands in a adds nothing then."""
        for place in self._ranks:
            a, b = matrices.get(f"{place}.a"), matrices.get(f"{place}.b")
            into = self._arrays[f"{place}.b"][slot]
            if a is None or b is None:
                into[...] = 0
                continue
            rank = a.shape[2]
            self._arrays[f"{place}.a"][slot, :, :rank] = a[0]
            into[:rank], into[rank:] = b[0], 0


def _only(adapters: Sequence[Adapter | None]) -> Adapter | None:
    """The adapter of them all."""
    kinds = {None if adapter is None else adapter.identity for adapter in adapters}
    return adapters[0] if len(kinds) == 1 else None


def _read(folder: ModelFolder) -> dict[str, Array]:
    options = ort.runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ort.QUIET
    try:
        session = ort.runtime.InferenceSession(str(folder.onnx), options, providers=[CPU])
        names = [output.name for output in session.get_outputs()]
        arrays = dict(zip(names, session.run(names, {}), strict=True))
    except Exception as error:
        raise ManifestError(f"{folder.identity}: {folder.onnx.name} doesn't give an adapter: {error}") from error
    for name, array in arrays.items():
        if array.dtype != np.float32 or array.ndim != 3 or not np.isfinite(array).all():
            raise ManifestError(f"{folder.identity}: {name} isn't (1, n, m) of finite float32")
    return arrays
