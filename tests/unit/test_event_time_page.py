"""The examples of docs/event_time.md do what the page says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

import msgspec
import pytest

from core.settings import Settings
from core.topics import LATE
from engine import agent as agents
from engine.agent import Agent
from engine.table import Table
from engine.testing import in_memory
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
async def test_an_example_does_what_the_page_says(code: str, lines: str) -> None:
    module = sys.modules["example"] = ModuleType("example")
    exec(compile(code, "example", "exec"), module.__dict__)
    (agent,) = agents.declared
    told = await run(agent, lines)
    assert told == lines.splitlines()


async def run(agent: Agent[Any], lines: str) -> list[str]:
    """Sends what is in, event by event, and returns the lines with what really comes out."""
    told: list[str] = []
    assert Settings.model_fields["allowed_lateness"].default == timedelta(seconds=10), "as the page says"
    topics = [*agent.outputs, LATE]
    async with in_memory([agent], Table.declared.values()) as trial:
        for line in lines.splitlines():
            if not line.startswith("in "):
                continue
            told.append(line)
            before = {topic.name: len(trial.outputs(topic)) for topic in topics}
            event = msgspec.json.decode(line.removeprefix("in "), type=agent.topic.value)
            await trial.send(agent.topic, [event])
            await trial.settle()
            for topic in topics:
                for output in trial.outputs(topic)[before[topic.name] :]:
                    shown = (
                        line_of(json.loads(output.value), told)
                        if topic is LATE
                        else json.dumps(msgspec.to_builtins(output.value))
                    )
                    told.append(f"out   {topic.name} {shown}")
    return told


def line_of(value: Any, told: list[str]) -> str:
    """The value as the page has it where it went in."""
    assert json.loads(told[-1].removeprefix("in ")).items() <= value.items()
    return told[-1].removeprefix("in    ")
