"""A worker that restarts keeps its partitions waiting: its start imports what it needs and no more, and neither its
start nor its end waits for a clock."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import Settings
from engine.app import App
from engine.boot import Tables, Worker
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from tests.worker import ROOT

NOT_NEEDED: Final = {
    *(
        "pandas",
        "sklearn",
        "onnx",
        "skl2onnx",
        "scipy",
        "opentelemetry",
        "qdrant_client",
        "usearch",
        "confluent_kafka",
        "torch",
    ),
    *("pytest", "tkinter", "matplotlib", "engine.testing", "engine.spans", "examples", "benchmarks"),
}
"""Installed for development, or for what was not asked for."""

IMPORTED: Final = """
import gc, json, sys
import app
print(json.dumps({"modules": list(sys.modules), "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""

LEAVING: Final = """
import atexit, sys, time
from concurrent.futures import ThreadPoolExecutor
from engine.exit import leave

pool = ThreadPoolExecutor()
pool.submit(lambda: (time.sleep(0.05), print("the thread is through")))
atexit.register(print, "what was registered has run")
print("buffered", end=" ")
leave({status})
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process has in it once it has imported app.py."""
    found: dict[str, Any] = json.loads(_python(IMPORTED, tmp_path_factory.mktemp("imported")).stdout)
    return found


@pytest.fixture
def app(tmp_path: Path) -> App:
    settings = Settings(broker="kafka://127.0.0.1:9", data_dir=tmp_path, model_store=str(tmp_path / "store"))
    return App(settings, LiveModels(ModelStore(settings.model_store), Device.of("cpu"), InferenceThread()), [], [])


def test_a_start_imports_nothing_that_a_worker_does_not_need(imported: dict[str, Any]) -> None:
    assert sorted(NOT_NEEDED.intersection(imported["modules"])) == []


def test_garbage_is_looked_for_after_the_imports_and_not_among_them(imported: dict[str, Any]) -> None:
    assert imported["collects"]
    assert imported["frozen"] > 50_000


async def test_the_group_is_joined_without_waiting_for_tables_of_fausts(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = app.tables
    assert isinstance(tables, Tables)
    monkeypatch.setattr(Tables, "sleep", _refuse_to_sleep)
    await tables.on_start()
    try:
        await asyncio.wait_for(tables.wait_until_tables_registered(), 1)
    finally:
        await tables.recovery.stop()


def test_a_worker_that_has_stopped_ends_without_a_sleep(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(app, loop=asyncio.new_event_loop(), override_logging=False)
    monkeypatch.setattr(asyncio, "sleep", _refuse_to_sleep)
    worker._shutdown_loop()
    assert worker.loop.is_closed()


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_leaves_as_pythons_own_end_would(status: int, tmp_path: Path) -> None:
    ended = _python(LEAVING.format(status=status), tmp_path)
    assert ended.returncode == status
    assert ended.stdout.splitlines() == ["buffered the thread is through", "what was registered has run"]


def _python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def _refuse_to_sleep(*args: Any) -> None:
    raise AssertionError(f"it sleeps: {args}")
