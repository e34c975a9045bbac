"""Models that run on the CPU though a GPU was to be taken: said wherever somebody may look."""

from __future__ import annotations

import pytest

from models.device import CPU, CUDA, Device
from tests.unit.web.worker import Make


async def test_a_fallback_is_told_by_health_models_and_metrics(make: Make) -> None:
    device = Device.of("auto", [CUDA, CPU])
    device.verify([CPU])
    worker = make()
    worker.app.engine.models.device = device
    await worker.start()
    async with worker.client.get("/health/ready") as answer:
        [warning] = (await answer.json())["warnings"]
    assert warning == f"models run on the CPU: {CUDA} couldn't be used: the session got only {CPU}"
    async with worker.client.get("/models") as answer:
        told = await answer.json()
    assert (told["device"], told["fallback"]) == ("cpu", device.fallback)
    async with worker.client.get("/metrics") as answer:
        assert 'homunculus_device_fallback{asked="auto",got="cpu"} 1.0' in await answer.text()


@pytest.mark.parametrize("name", ["cpu", "auto"])
async def test_where_no_gpu_was_to_be_taken_there_is_no_fallback(make: Make, name: str) -> None:
    worker = make()
    worker.app.engine.models.device = Device.of(name, [CPU])
    await worker.start()
    async with worker.client.get("/metrics") as answer:
        assert f'homunculus_device_fallback{{asked="{name}",got="cpu"}} 0.0' in await answer.text()
    async with worker.client.get("/models") as answer:
        assert "fallback" not in await answer.json()
