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
from core.topics import LATE
from engine import agent as agents
from engine.agent import Agent
from engine.table import Table
from engine.testing import Trial, in_memory, on_broker
from tests.kafka import given_kafka
from tests.worker import ROOT

PAGE: Final = (ROOT / "docs" / "event_time.md").read_text("utf-8")
_EXAMPLE: Final = re.compile(r"^## (\w+)\n.*?```python\n(.*?)```\n\n```\n(.*?)```", re.DOTALL | re.MULTILINE)
EXAMPLES: Final = [pytest.param(*rest, id=name) for name, *rest in _EXAMPLE.findall(PAGE)]


@pytest.fixture
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Table, "declared", {})
    monkeypatch.setattr(agents, "declared", [])
    yield
    sys.modules.pop("example", None)


def test_the_page_has_its_examples() -> None:
    assert [example.id for example in EXAMPLES] == ["Windows", "Timers", "Patterns"]


def declare(code: str) -> Agent[Any]:
    """Runs an example's code, and returns its agent."""
    module = sys.modules["example"] = ModuleType("example")
    exec(compile(code, "example", "exec"), module.__dict__)
    (agent,) = agents.declared
    return agent


@pytest.mark.usefixtures("nothing_declared")
@pytest.mark.parametrize(("code", "lines"), EXAMPLES)
async def test_an_example_does_what_the_page_says(code: str, lines: str) -> None:
    agent = declare(code)
    assert await told(in_memory([agent], Table.declared.values()), agent, lines) == lines.splitlines()


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "embedded"])
def url(request: pytest.FixtureRequest) -> str:
    """A broker to run an application on."""
    return given_kafka().url if request.param == "kafka" else "embedded"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_declared")
@pytest.mark.parametrize(("code", "lines"), EXAMPLES)
async def test_an_example_does_the_same_on_a_broker(
    code: str, lines: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example.py").write_text(code)
    (tmp_path / "examples_app.py").write_text("import example\nfrom app import app\n")
    monkeypatch.chdir(tmp_path)
    agent = declare(code)
    assert await told(on_broker(url, "examples_app"), agent, lines) == lines.splitlines()


async def told(application: Trial, agent: Agent[Any], lines: str) -> list[str]:
    """Sends what is in, event by event, and returns the lines with what really comes out."""
    said: list[str] = []
    assert Settings.model_fields["allowed_lateness"].default == timedelta(seconds=10), "as the page says"
    topics = [*agent.outputs, LATE]
    async with application as trial:
        for line in lines.splitlines():
            if not line.startswith("in "):
                continue
            said.append(line)
            before = {topic.name: len(trial.outputs(topic)) for topic in topics}
            event = msgspec.json.decode(line.removeprefix("in "), type=agent.topic.value)
            await trial.send(agent.topic, [event])
            await trial.settle()
            for topic in topics:
                for output in trial.outputs(topic)[before[topic.name] :]:
                    value = json.loads(output.value) if topic is LATE else msgspec.to_builtins(output.value)
                    said.append(f"out   {topic.name} {line_of(value, said) if topic is LATE else json.dumps(value)}")
    return said


def line_of(value: Any, said: list[str]) -> str:
    """The value as the page has it where it went in."""
    assert json.loads(said[-1].removeprefix("in ")).items() <= value.items()
    return said[-1].removeprefix("in    ")
