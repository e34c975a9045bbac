"""Devices: what was asked for is what runs, or it is said."""

from __future__ import annotations

import logging

import pytest

from core.errors import ProviderMissingError
from models import ort
from models.device import CPU, CUDA, Device

GPU_BUILD = [CUDA, CPU]


def test_the_cpu_is_always_there() -> None:
    device = Device.of("cpu")
    assert device.providers == [CPU]
    device.verify([CPU])


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_cuda_is_asked_for_by_its_number(name: str, index: int) -> None:
    assert Device.of(name, GPU_BUILD).providers == [(CUDA, {"device_id": index}), CPU]


def test_cuda_without_a_gpu_build_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(ProviderMissingError, match="gpu extra"):
        Device.of("cuda", [CPU])


def test_cuda_that_fell_back_in_silence_is_an_error() -> None:
    with pytest.raises(ProviderMissingError, match="cuda:1 was asked for"):
        Device.of("cuda:1", GPU_BUILD).verify([CPU])


def test_auto_takes_the_cpu_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    device = Device.of("auto", GPU_BUILD)
    assert device.providers[0] == (CUDA, {"device_id": 0})
    device.verify([CPU])
    device.verify([CPU])
    assert [record.getMessage() for record in caplog.records] == [
        f"models run on the CPU: device is auto and {CUDA} couldn't be used"
    ]


def test_auto_on_a_build_without_cuda_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    device = Device.of("auto", [CPU])
    assert device.providers == [CPU]
    device.verify([CPU])
    assert CUDA in caplog.text


@pytest.mark.skipif(CUDA not in ort.runtime.get_available_providers(), reason="this onnxruntime knows no CUDA")
def test_auto_takes_a_gpu_build() -> None:
    assert Device.of("auto").providers[0] == (CUDA, {"device_id": 0})
