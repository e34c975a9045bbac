"""Every line of docs/faust.md holds: what works is used by a worker, what is refused is tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from faust.cli.base import cli

from cli import commands
from core.errors import UsageError
from core.settings import Settings
from engine.agent import Stream
from engine.app import App
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import ROOT, Worker, free_port, until
from web.server import WebServer

APP: Final = "tests.surface.app"


def rows(heading: str) -> list[str]:
    """The first column of the table under a heading of docs/faust.md."""
    text = (ROOT / "docs" / "faust.md").read_text("utf-8")
    section = text.partition(f"## {heading}")[2].partition("\n## ")[0]
    return [found[1] for found in re.finditer(r"^\| `([^`]+)` \|", section, re.MULTILINE)]


# -- what works ----------------------------------------------------------------------------------------------------


class Used:
    """A worker of the application that uses all of it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.port = free_port()
        self.worker = rig.worker("a", app=APP, arguments=["--web-port", str(self.port)])
        self.worker.port = self.port
        self.worker.start()
        until(lambda: "no model" in self.worker.get("/health/ready").text, 60, what="up", alive=[self.worker])

    def happens(self, what: str) -> None:
        """Waits until the application says that it happened."""
        until(lambda: what in self.worker.get("/happened").json(), 20, what=what, alive=[self.worker])

    def command(self, *words: str) -> str:
        """What a command prints."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOMUNCULUS_")}
        found = subprocess.run(
            [sys.executable, "-m", "faust", "-A", APP, *words],
            cwd=ROOT,
            env=environment | self.worker.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout


@pytest.fixture(scope="module")
def used(embedded: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with rig_on(embedded, tmp_path_factory.mktemp("surface"), partitions=2) as rig:
        yield Used(rig)


def sending(used: Used, text: str) -> None:
    """Asks the application to send both ways of Faust."""
    assert used.worker.get(f"/send/{text}").status == 200


def faust_send(used: Used) -> None:
    used.command("send", used.rig.topic("greetings"), '{"session": "s", "text": "typed"}', "--key", "s")
    used.happens("agent typed")


def batches(used: Used) -> None:
    sending(used, "inside")
    used.happens("agent inside")
    used.happens("each inside")


def app_send(used: Used) -> None:
    sending(used, "app")
    used.happens("each app")


def topic_send(used: Used) -> None:
    sending(used, "topic")
    used.happens("agent topic")


def web_port(used: Used) -> None:
    assert used.worker.environment["HOMUNCULUS_WEB_PORT"] != str(used.port)
    assert used.worker.get("/health/live").status == 200


def without_web(used: Used) -> None:
    silent = used.rig.worker("silent", arguments=["--without-web"])
    silent.environment["HOMUNCULUS_APP_ID"] += "-silent"
    silent.start().wait_log("TaskConsumer]: Starting", 40)  # the server's turn is over by then
    assert silent.get("/health/live").status == 0
    silent.close()


def agents(used: Used) -> None:
    said = used.command("agents")
    assert "tests.surface.app.greet" in said
    assert "greetings" in said
    assert "Event by event, inside batches." in said


WORKS: Final[dict[str, Callable[[Used], None]]] = {
    "@app.task": lambda used: used.happens("task"),
    "@app.timer": lambda used: used.happens("timer"),
    "@app.crontab": lambda used: used.happens("crontab"),
    "@app.service": lambda used: used.happens("service"),
    "@app.page": lambda used: used.happens("timer"),
    "@app.command": lambda used: _is("hello from", used.command("hello")),
    "app.topic(...).send": topic_send,
    "app.send": app_send,
    "faust send": faust_send,
    "async for": batches,
    "--web-port": web_port,
    "--without-web": without_web,
    "faust agents": agents,
}


def test_the_table_of_what_works_is_what_is_tested() -> None:
    assert rows("What works") == list(WORKS)


@pytest.mark.parametrize("what", WORKS)
def test_this_of_fausts_works(what: str, used: Used) -> None:
    WORKS[what](used)


# -- what is refused -----------------------------------------------------------------------------------------------


class Fresh:
    """An application without a worker, and how workers of it end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = Settings(broker="kafka://127.0.0.1:9", data_dir=folder, model_store=str(folder / "store"))
        models = LiveModels(ModelStore(settings.model_store), Device.of("cpu"), InferenceThread())
        self.app = App(settings, models, [], [])

    def refuses(self, call: Callable[[App], Any], instead: str) -> None:
        """The call raises UsageError, which names what takes its place."""
        with pytest.raises(UsageError, match=re.escape(instead)):
            call(self.app)

    def ends(self, *arguments: str, **environment: str) -> str:
        """The log of a worker that refuses to start."""
        given = {"HOMUNCULUS_BROKER": "kafka://127.0.0.1:9", "HOMUNCULUS_WEB_PORT": str(free_port())} | environment
        worker = Worker("refused", self.folder, given, arguments=arguments).start()
        try:
            assert worker.wait(40) > 0
            return worker.log(None)
        finally:
            worker.close()


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path)


def not_on_streams(name: str) -> Callable[[Fresh], None]:
    def check(fresh: Fresh) -> None:
        assert not hasattr(Stream, name)

    return check


def not_served(path: str) -> Callable[[Fresh], None]:
    def check(fresh: Fresh) -> None:
        served = {r.resource.canonical for r in WebServer(fresh.app).application().router.routes() if r.resource}
        assert not any(route.startswith(path) for route in served)

    return check


def guarantee(fresh: Fresh) -> None:
    said = fresh.ends(HOMUNCULUS_FAUST_PROCESSING_GUARANTEE="exactly_once")
    assert "HOMUNCULUS_GUARANTEE" in said


def web_bind(fresh: Fresh) -> None:
    said = fresh.ends("--web-bind", "0.0.0.0", FAUST_WEB_BIND="127.0.0.1")
    assert "HOMUNCULUS_WEB_TOKEN" in said


def transport(fresh: Fresh) -> None:
    assert "--web-transport" in fresh.ends("--web-transport", f"unix://{fresh.folder}/socket")


def commands_of_ours(fresh: Fresh) -> dict[str, Any]:
    ours = {"Agents", "Chat", "Doctor", "Drift", "Models", "Replay", "Reset", "Send", "Tables", "Topics", "Worker"}
    ours.add("state")
    assert set(commands.__all__) == ours
    return dict(cli.commands)


def gone(name: str) -> Callable[[Fresh], None]:
    def check(fresh: Fresh) -> None:
        assert name not in commands_of_ours(fresh)

    return check


def replaced(name: str) -> Callable[[Fresh], None]:
    def check(fresh: Fresh) -> None:
        command = commands_of_ours(fresh)[name]
        assert command.callback.__wrapped__.__module__.startswith("cli.")

    return check


REFUSED: Final[dict[str, Callable[[Fresh], None]]] = {
    "app.Table": lambda fresh: fresh.refuses(lambda app: app.Table("t"), "engine.table.Table"),
    "app.GlobalTable": lambda fresh: fresh.refuses(lambda app: app.GlobalTable("t"), "engine.table.Table"),
    "app.SetTable": lambda fresh: fresh.refuses(lambda app: app.SetTable("t"), "engine.table.Table"),
    "app.SetGlobalTable": lambda fresh: fresh.refuses(lambda app: app.SetGlobalTable("t"), "engine.table.Table"),
    "app.agent": lambda fresh: fresh.refuses(lambda app: app.agent("topic"), "engine.agent.agent"),
    "stream.group_by": not_on_streams("group_by"),
    "stream.take": not_on_streams("take"),
    "processing_guarantee": guarantee,
    "FAUST_WEB_BIND": web_bind,
    "--web-transport": transport,
    "/router/": not_served("/router"),
    "/table/": not_served("/table/"),
    "/stats/": not_served("/stats"),
    "faust model": gone("model"),
    "faust clean-versions": gone("clean-versions"),
    "faust tables": replaced("tables"),
    "faust reset": replaced("reset"),
}


def test_the_table_of_what_is_refused_is_what_is_tested() -> None:
    assert rows("What is refused, or gone") == list(REFUSED)


@pytest.mark.parametrize("what", REFUSED)
def test_this_of_fausts_is_refused(what: str, fresh: Fresh) -> None:
    REFUSED[what](fresh)


def _is(part: str, whole: str) -> None:
    assert part in whole
