"""Devices: what was asked for is what runs, or it is said."""

from __future__ import annotations

import logging

import pytest

from core.errors import ProviderMissingError
from models import cuda, ort
from models.device import CPU, CUDA, Device

GPU_BUILD = [CUDA, CPU]


def test_the_cpu_is_always_there() -> None:
    device = Device.of("cpu")
    assert device.providers == [CPU]
    device.verify([CPU])


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_cuda_is_asked_for_by_its_number_with_an_arena_that_grows_by_what_is_asked_for(name: str, index: int) -> None:
    device = Device.of(name, GPU_BUILD)
    assert device.providers == [(CUDA, {"device_id": index, "arena_extend_strategy": "kSameAsRequested"}), CPU]
    assert device.runs_on == f"cuda:{index}"
    best = device.providers_within(10**9)[0]
    assert not isinstance(best, str)
    assert best[1]["gpu_mem_limit"] == 10**9


def test_the_declared_memory_is_an_accelerators_and_the_cpu_has_no_bound() -> None:
    assert Device.of("cuda", GPU_BUILD, memory=10**9).memory.limit == 10**9
    assert Device.of("auto", [CPU], memory=10**9).memory.limit is None
    fell = Device.of("auto", GPU_BUILD, memory=10**9)
    fell.verify([CPU])
    assert fell.memory.limit is None


def test_cuda_without_a_gpu_build_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(ProviderMissingError, match="gpu extra"):
        Device.of("cuda", [CPU])


def test_cuda_that_fell_back_in_silence_is_an_error() -> None:
    with pytest.raises(ProviderMissingError, match="cuda:1 was asked for"):
        Device.of("cuda:1", GPU_BUILD).verify([CPU])


def test_auto_takes_the_cpu_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    device = Device.of("auto", GPU_BUILD)
    assert device.runs_on == "cuda:0"
    device.verify([CPU])
    device.verify([CPU])
    assert device.runs_on == "cpu"
    assert device.fallback == f"{CUDA} couldn't be used: the session got only {CPU}"
    assert [record.getMessage() for record in caplog.records] == [
        f"models run on the CPU: device is auto and {CUDA} couldn't be used"
    ]


def test_auto_on_a_build_without_cuda_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    device = Device.of("auto", [CPU])
    assert device.providers == [CPU]
    device.verify([CPU])
    assert CUDA in caplog.text
    assert device.fallback is None, "there was nothing to fall back from"


@pytest.mark.skipif(CUDA not in ort.runtime.get_available_providers(), reason="this onnxruntime knows no CUDA")
def test_auto_takes_a_gpu_build() -> None:
    assert Device.of("auto").runs_on == "cuda:0"


def test_without_a_gpu_nobody_says_what_is_used_and_nothing_is_pinned() -> None:
    if cuda.used(0) is not None:
        pytest.skip("there is a GPU")
    device = Device.of("cuda", GPU_BUILD)
    assert device.used() is None
    assert device.pinned(4096) is None
