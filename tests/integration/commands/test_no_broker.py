"""Commands without a broker: none hangs, each says how to get one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cli import checks
from cli.reach import reach
from core.errors import SettingsError
from core.settings import EMBEDDED, Settings
from engine.app import App
from tests.command import command
from tests.kafka import free_port


async def test_without_an_embedded_broker_a_command_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = free_port()
    for module in ("cli.reach", "cli.checks"):
        monkeypatch.setattr(f"{module}.PORT", nobody)
    ours = Settings(broker=EMBEDDED)
    with pytest.raises(SettingsError, match=rf"{nobody}.*faust -A app worker"):
        await reach(ours)
    detail, connection = await checks.broker(cast(App, SimpleNamespace(settings=ours)))
    assert "none is running" in detail
    assert connection is None


@pytest.mark.parametrize("name", ["models", "tables", "topics", "replay"])
def test_without_a_broker_a_command_ends_with_one_document_that_says_so(name: str, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    found = command(name, "--json", broker=f"kafka://{nobody}", data_dir=tmp_path, model_store=tmp_path / "store")
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert nobody in document.get("message", "") + str(document.get("error"))
    assert document.keys() >= ({name} if name in {"models", "tables"} else {"message"})


def test_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    found = command("topics", broker=f"kafka://{nobody}", data_dir=tmp_path)
    assert found.returncode == 1
    assert nobody in found.stderr
    assert "Traceback" not in found.stderr
