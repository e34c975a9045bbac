"""A decoder's graph in ONNX Runtime, and the memory that its sessions' keys and values are in."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from core.errors import ManifestError, ProviderMissingError
from models import ort
from models.decoder.adapter import Adapter, Matrices, Rows
from models.device import CPU, CUDA, Device
from models.engine import Array
from models.folder import ModelFolder
from models.language import PLACES, Language, place
from models.nice import made_nicely

Floats = NDArray[np.float32]

PARTS: Final = ("key", "value")
NICE: Final = 5
"""Of the threads that compute: the event loop and scores, which are due in milliseconds, take the processor first."""
SPARE: Final = 16
"""Positions of a slot behind its window: where a row that nobody reads writes."""


class Network:
    """The graph, checked against its manifest."""

    def __init__(self, folder: ModelFolder, device: Device, threads: int) -> None:
        """Raises ManifestError for a graph that can't be loaded or is another than a decoder's; ProviderMissingError
        where a GPU is asked for."""
        language = folder.manifest.language
        if language is None:
            raise ManifestError(f"{folder.identity} is no language model, but a {folder.manifest.kind}")
        if CUDA in str(device.providers[0]) and device.name != "auto":
            raise ProviderMissingError(f"{folder.identity}: device {device.name} was asked for; decoders use the CPU")
        self.language: Final = language
        self.identity: Final = folder.identity
        options = ort.runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = ort.QUIET
        # Between the nodes of one run the threads would sleep and be woken thousands of times a second otherwise.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            make = partial(ort.runtime.InferenceSession, str(folder.onnx), options, providers=[CPU])
            self.session = made_nicely(make, NICE)
        except Exception as error:
            raise ManifestError(f"{folder.identity}: {folder.onnx.name} can't be loaded: {error}") from error
        self._check()
        self.floats: Final[DTypeLike] = np.float16 if language.weights == "fp16" else np.float32
        """Of keys and values."""
        shapes = {given.name: given.shape for given in self.session.get_overridable_initializers()}
        self.places: Final = {
            name: (int(shapes[f"{name}.a"][1]), int(shapes[f"{name}.b"][2])) for name in _places(language)
        }
        """What adapters may change -> the sizes of what goes in and what comes out."""

    def _check(self) -> None:
        language = self.language
        past = ["B", language.kv_heads, "T", language.head_dim]
        floats = "tensor(float16)" if language.weights == "fp16" else "tensor(float)"
        wanted = {
            "input_ids": ("tensor(int64)", ["B", "S"]),
            "seqlens_k": ("tensor(int32)", ["B"]),
            "total_sequence_length": ("tensor(int32)", [1]),
            "logits_rows": ("tensor(int64)", ["N"]),
            **dict.fromkeys(names("past_key_values", language), (floats, past)),
        }
        free = {f"{name}.{part}" for name in _places(language) for part in "ab"}
        free |= {"inputs_embeds", "position_ids"} if language.embeds else set()
        got = {given.name: (given.type, list(given.shape)) for given in self.session.get_inputs()}
        outputs = {"logits", *(["hidden_states"] if language.hidden else []), *names("present", language)}
        given = {output.name for output in self.session.get_outputs()}
        logits = next((output.shape for output in self.session.get_outputs() if output.name == "logits"), None)
        left = {given.name for given in self.session.get_overridable_initializers()} ^ free
        if got != wanted or given != outputs or left or list(logits or ()) != ["N", language.vocabulary]:
            odd = sorted(name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name))
            odd += sorted(left)
            raise ManifestError(
                f"{self.identity}: the graph isn't that of its manifest's language; it differs in "
                f"{', '.join(odd[:5] or sorted(given ^ outputs)[:5] or ['logits'])}"
            )


def names(prefix: str, language: Language) -> list[str]:
    """Of the graph's keys and values, layer by layer."""
    return [f"{prefix}.{layer}.{part}" for layer in range(language.layers) for part in PARTS]


def _places(language: Language) -> list[str]:
    return [place(layer, of) for layer in range(language.layers) for of in PLACES] if language.adapters else []


class Slab:
    """Keys and values of several slots: for each layer and part one array (slots, kv_heads, capacity, head_dim), of f32
    or, of a graph of fp16, f16.

    Past and present of a run are the same memory. Any row of neighbouring slots can be one batch. For one thread.
    """

    def __init__(self, network: Network, slots: int, window: int) -> None:
        """Memory is taken as slots fill, and given back when they are cleared."""
        language = network.language
        self.slots, self.window, self.vocabulary = slots, window, language.vocabulary
        self.lengths: Final = np.zeros(slots, np.int32)
        """Tokens of each slot whose keys and values are there."""
        self._network = network
        self._capacity = window + SPARE
        floats = np.dtype(network.floats)
        self._row = language.kv_heads * self._capacity * language.head_dim * floats.itemsize
        shape = (slots, language.kv_heads, self._capacity, language.head_dim)
        self._memory = [_lazy(slots * self._row) for _ in range(2 * language.layers)]
        self.values: Final = [np.frombuffer(memory, floats).reshape(shape) for memory in self._memory]
        self._bindings: dict[tuple[int, int], Any] = {}
        self._adapted: OrderedDict[tuple[int, int, str], tuple[Any, Matrices]] = OrderedDict()
        """First slot, number of slots and adapters -> the binding, and what it has the addresses of; the newest."""
        self._rows = Rows(slots, network.places, floats)
        self._in, self._out = names("past_key_values", language), names("present", language)

    @property
    def token_bytes(self) -> int:
        """Memory of one token."""
        return self._row // self._capacity * len(self.values)

    def run(
        self,
        tokens: NDArray[np.int64],
        first: int,
        wanted: Sequence[int],
        adapters: Sequence[Adapter | None] | None = None,
    ) -> Floats:
        """Computes tokens (n, S) on top of slots first .. first + n, whose lengths grow by S.

        S > 1 needs n = 1. wanted: positions in the n * S tokens whose logits are returned, (len(wanted), vocabulary).
        adapters: of the n slots; without any, the graph adds nothing. Raises what ONNX Runtime raises.
        """
        count, size = tokens.shape
        totals = self.lengths[first : first + count] + size
        if int(totals.max()) > self._capacity:
            raise ValueError(f"{int(totals.max())} tokens for a slot of {self._capacity}")
        logits = np.empty((len(wanted), self.vocabulary), np.float32)
        given: dict[str, Array] = {
            "input_ids": np.ascontiguousarray(tokens),
            "seqlens_k": (totals - 1).astype(np.int32),
            "total_sequence_length": np.array([totals.max()], np.int32),
            "logits_rows": np.array(wanted, np.int64),
        }
        if adapters is None or not any(adapters):
            binding = self._binding(first, count)
        else:
            binding = self._adapting(first, adapters)
        for name, array in given.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._network.session.run_with_iobinding(binding)
        self.lengths[first : first + count] = totals
        return logits

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        """Copies keys and values of positions begin .. end from slot to slot; the target then has `end` tokens."""
        for values in self.values:
            values[target, :, begin:end] = values[source, :, begin:end]
        self.lengths[target] = end

    def swap(self, one: int, other: int) -> None:
        """Exchanges two slots."""
        size = int(max(self.lengths[one], self.lengths[other]))
        for values in self.values:
            kept = values[one, :, :size].copy()
            values[one, :, :size] = values[other, :, :size]
            values[other, :, :size] = kept
        self.lengths[[one, other]] = self.lengths[[other, one]]

    def clear(self, slot: int) -> None:
        """The slot is empty, and its memory the system's again."""
        self.lengths[slot] = 0
        for memory in self._memory:
            begin = -(-slot * self._row // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (slot + 1) * self._row // mmap.PAGESIZE * mmap.PAGESIZE
            if end > begin:
                memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        """Frees the memory, and the network with the last of its slabs. Nothing else may be called then."""
        self._bindings.clear()
        self._adapted.clear()
        self.values.clear()
        self._memory.clear()
        del self._network

    def _binding(self, first: int, count: int) -> Any:
        binding = self._bindings.get((first, count))
        if binding is None:
            binding = self._bindings[first, count] = self._bound(first, count)
        return binding

    def _adapting(self, first: int, adapters: Sequence[Adapter | None]) -> Any:
        key = (first, len(adapters), self._rows.settle(first, adapters))
        if key not in self._adapted:
            binding, matrices = self._bound(first, len(adapters)), self._rows.matrices(first, adapters)
            for name, array in matrices.items():
                binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._adapted[key] = binding, matrices
            if len(self._adapted) > 2 * self.slots:
                self._adapted.popitem(last=False)
        self._adapted.move_to_end(key)
        return self._adapted[key][0]

    def _bound(self, first: int, count: int) -> Any:
        binding = self._network.session.io_binding()
        for past, present, values in zip(self._in, self._out, self.values, strict=True):
            rows = values[first : first + count]
            binding.bind_input(past, "cpu", 0, rows.dtype, rows.shape, rows.ctypes.data)
            binding.bind_output(present, "cpu", 0, rows.dtype, rows.shape, rows.ctypes.data)
        return binding


def _lazy(size: int) -> mmap.mmap:
    """Zeros that take memory when they are written. Huge pages would take 2 MB for each token's few hundred bytes."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory
