"""The examples of docs/event_time.md do what the page says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import pytest

from core.settings import Settings
from engine import agent as agents
from engine.agent import Agent
from engine.table import Table
from tests.partition import Partition
from tests.worker import ROOT

PAGE: Final = (ROOT / "docs" / "event_time.md").read_text("utf-8")
EXAMPLES: Final = re.findall(r"^## (\w+)\n.*?```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Table, "declared", {})
    monkeypatch.setattr(agents, "declared", [])
    yield
    sys.modules.pop("example", None)


def test_the_page_has_its_examples() -> None:
    assert [name for name, _, _ in EXAMPLES] == ["Windows", "Timers", "Patterns"]


@pytest.mark.usefixtures("nothing_declared")
@pytest.mark.parametrize(("code", "lines"), [pytest.param(*rest, id=name) for name, *rest in EXAMPLES])
async def test_an_example_does_what_the_page_says(
    code: str, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["example"] = ModuleType("example")
    exec(compile(code, "example", "exec"), module.__dict__)
    (agent,) = agents.declared
    told = await run(agent, lines, tmp_path, monkeypatch)
    assert told == lines.splitlines()


async def run(agent: Agent[Any], lines: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sends what is in, event by event, and returns the lines with what really comes out."""
    told: list[str] = []
    lateness = Settings.model_fields["allowed_lateness"].default
    assert lateness == timedelta(seconds=10), "as the page says"
    async with Partition([agent], [*Table.declared.values()], folder, monkeypatch, lateness=lateness) as partition:
        for line in lines.splitlines():
            if not line.startswith("in "):
                continue
            told.append(line)
            before = len(partition.committed.outputs)
            event = msgspec.json.decode(line.removeprefix("in "), type=agent.topic.value)
            await partition.send([event])
            partition.commit()
            for output in partition.committed.outputs[before:]:
                shown = line_of(output.json, told) if output.topic == "late" else json.dumps(output.json)
                told.append(f"out   {output.topic} {shown}")
    return told


def line_of(value: Any, told: list[str]) -> str:
    """The value as the page has it where it went in."""
    assert json.loads(told[-1].removeprefix("in ")).items() <= value.items()
    return told[-1].removeprefix("in    ")
