"""Real purchases through a worker on this machine: a new version on the way, its drift, and what is done about that.

    scripts/demo [purchases] [--keep] [--events N] [--broker URL]

Exit status 0 means that everything that it promises has happened; 1 that something has not, and it says what.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from core.events import Observation
from core.settings import EMBEDDED
from core.topics import ALERTS, FEEDBACK, OBSERVATIONS, PREDICTIONS, RETRAIN
from engine.connection import client_options
from engine.embedded import HOST, PORT, Answer, answer_at
from examples.command import WEB_PORT, options_of, run, status_of
from examples.purchases import customers, versions
from examples.purchases.aftermath import Aftermath
from examples.purchases.data import CUSTOMERS, PURCHASES, observations
from examples.purchases.judged import Judged, judged, online
from examples.purchases.labels import HORIZON_MS
from examples.purchases.ledger import Ledger
from examples.purchases.loop import LOW_ALERTS, Loop
from examples.purchases.process import Guarded
from examples.purchases.replay import Replay, StalledError
from examples.purchases.report import Report
from examples.purchases.screen import Screen
from examples.purchases.story import Story
from examples.purchases.train import LEARN_MS, NAME
from examples.purchases.worker import Worker, free_port
from models.store import ModelStore

T = TypeVar("T")

OLD: Final = "1"
NEW: Final = "2"
RESPONSE: Final = "fallback, retrain"
"""What is declared for a drift."""
SHOWN: Final = (OBSERVATIONS, FEEDBACK, PREDICTIONS, ALERTS, RETRAIN)
"""Topics that there is something to look at."""
TRAINER: Final = (sys.executable, "-m", "examples.purchases.trainer")
PARTITIONS: Final = 8
SESSION_TIMEOUT_S: Final = 6
"""Shorter than the setting's default: the embedded broker holds a new group back for half of it."""
START_S: Final = 90.0
"""Longest wait for the worker, which compiles its libraries at its first start."""
LIVE_S: Final = 60.0


class Demo:
    """One run, with topics and a group of its own on whatever broker there is."""

    def __init__(self, events: Sequence[Observation], store: Path, broker: str, web_port: int, screen: Screen) -> None:
        """store: with versions 1 and 2; this run puts more into it."""
        self._events = events
        self._screen = screen
        self._ledger = Ledger(events)
        self._story = Story(NEW)
        self._whole = len(events) == PURCHASES
        """Else there are too few answers for a drift to be told."""
        self._store = store.absolute()
        self._known_from = events[0].ts + LEARN_MS + HORIZON_MS
        """Nothing that the models learnt from reaches behind it."""
        self._change = next(place for place, event in enumerate(events) if event.ts >= self._known_from)
        self._prefix = f"purchases-{secrets.token_hex(3)}-"
        self._embedded = broker == EMBEDDED
        self._url = f"kafka://{HOST}:{PORT}" if self._embedded else broker
        self._bootstrap, security = client_options(self._url)
        self._options = {"bootstrap_servers": self._bootstrap, **security}
        self._settings: dict[str, object] = {
            "broker": broker,
            "app_id": self._prefix.rstrip("-"),
            "topic_prefix": self._prefix,
            "partitions": PARTITIONS,
            "model_store": self._store,
            "web_port": web_port,
            "session_timeout": SESSION_TIMEOUT_S,
        }

    async def run(self, folder: Path, *, keep: bool) -> int:
        """All of it. Returns the exit status; the worker has ended by then.

        Raises HomunculusError or KafkaError when it can't go on.
        """
        screen = self._screen
        shared = not self._embedded or await answer_at(HOST, PORT) is Answer.BROKER
        async with Worker(folder, {**self._settings, "data_dir": folder / "data"}) as worker:
            with screen.step("worker") as step:
                await worker.opened(PARTITIONS, START_S)
                broker = f"{'shared' if shared else 'own'} broker at {self._bootstrap}"
                step.result = f"{PARTITIONS} partitions open, {broker}, web at {worker.url}"
            claims = await _beside(self._told(worker, folder), worker.ended())
            shown = 0
            if keep:
                screen.verdict(claims)
                shown = len(claims)
                screen.line(self._how_to_go_on(worker))
                await _until_interrupted(worker)
            claims.append((await worker.stop() == 0, "the worker stopped cleanly"))
            if not shared:
                claims.append((await answer_at(HOST, PORT) is Answer.NOBODY, "its broker has gone with it"))
            screen.verdict(claims[shown:])
            return 0 if all(held for held, _ in claims) else 1

    async def _told(self, worker: Worker, folder: Path) -> list[tuple[bool, str]]:
        """The stream and its summary. Returns what was promised, and whether it happened."""
        screen, ledger = self._screen, self._ledger
        settings = {name: value for name, value in self._settings.items() if name != "web_port"}
        trainer = Guarded("trainer", TRAINER, folder, {**settings, "broker": self._url})
        loop, asked_at, joined = await self._stream(worker, trainer)
        five = [
            customers.customer(ledger.latest[session], await worker.row("sessions", session), self._events)
            for session in customers.chosen(ledger.latest, ledger.judge.purchases)
        ]
        quality = {version: online(ledger, version, self._known_from) for version in ledger.versions}
        report = Report(ledger, OLD, NEW, asked_at, self._change, five, quality, joined)
        lines, claims = list(report.lines()), list(report.claims(repeats=self._embedded))
        if self._whole:
            judged = await asyncio.to_thread(self._judged)
            aftermath = Aftermath(ledger, self._story, loop.live_at, loop.trained_s, judged)
            lines += aftermath.lines()
            claims += aftermath.claims()
        screen.summary(lines)
        screen.customers(five)
        return claims

    def _judged(self) -> Judged | None:
        story = self._story
        if story.promoted is None or story.seen is None or story.retrained is None:
            return None
        store = ModelStore(str(self._store))
        return judged(self._ledger, store, (OLD, NEW), NEW, story.retrained, story.seen.last)

    async def _stream(self, worker: Worker, trainer: Guarded) -> tuple[Loop, float, int]:
        """Sends everything and reads all answers. Returns what it has waited for, when the new version was asked for,
        and how many labels have found their answers."""
        screen, ledger = self._screen, self._ledger
        async with Replay(self._options, self._prefix, ledger, self._story, worker.labels_joined) as replay:
            with screen.step("model") as step:
                await replay.ask_for(OLD)
                await worker.ready(LIVE_S)
                step.result = f'{NAME}@{OLD} is live: {{"active": "{OLD}"}} was published on control'
            screen.line()
            loop = Loop(replay, ledger, self._story, worker, trainer, screen)
            try:
                await _beside(self._send(replay, loop, trainer), replay.read(), screen.follow(ledger.progress))
                screen.line(f"{ledger.answered:>7,} of {len(self._events):,} events are answered")
            except StalledError as error:
                raise worker.error(str(error)) from error
            await replay.read_rest()
            if not ledger.answered:
                raise worker.error(f"not one event was answered: {ledger.refused[0]}")
            return loop, replay.requested_at[NEW], await worker.labels_joined()

    async def _send(self, replay: Replay, loop: Loop, trainer: Guarded) -> None:
        """The whole stream, and what the demo does itself on the way: it asks for the new version on day 180."""
        n = len(self._events)
        await replay.send(self._change)
        if self._whole:
            await loop.change(NEW, fallback=OLD, response=RESPONSE, low_alerts=LOW_ALERTS)
            await loop.begin(OLD)
            async with trainer:
                await _beside(loop.run(), trainer.ended())
        else:
            self._screen.line("A sample has too few answers for a drift to be told: run it without --events for that")
            await loop.change(NEW)
        await replay.send(n)
        await replay.answered(0)
        await replay.labelled(0)

    def _how_to_go_on(self, worker: Worker) -> str:
        session = self._events[-1].session
        topics = ", ".join(self._prefix + topic.name for topic in SHOWN)
        return f"""
It goes on until Ctrl-C. Meanwhile {worker.url}/ is its live page, and
  curl {worker.url}/tables/sessions/{session}
  curl {worker.url}/models
  curl {worker.url}/drift/{NAME}@{NEW}
  curl -X POST -H 'Content-Type: application/json' -d '{{"active": "{OLD}"}}' {worker.url}/models/{NAME}
  topics at {self._bootstrap}: {topics}
  its log: {worker.log}"""


async def _beside(work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, None]) -> T:
    """Does the work while the others go on; ends with it, or with the first error of any of them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other) for other in others]
            done = await work
            for task in tasks:
                task.cancel()
            return done
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _until_interrupted(worker: Worker) -> None:
    """Returns at Ctrl-C or SIGTERM. Raises ProcessError when the worker ends before."""
    try:
        await worker.ended()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None  # this is a coroutine
        task.uncancel()


def sample(events: Sequence[Observation], count: int) -> list[Observation]:
    """All purchases of some customers, about count: evenly spread over the order in which they came."""
    sessions = list(dict.fromkeys(event.session for event in events))
    wanted = max(1, min(len(sessions), round(count * len(sessions) / len(events))))
    kept = {sessions[place * len(sessions) // wanted] for place in range(wanted)}
    return [event for event in events if event.session in kept]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = options_of("purchases", __doc__.splitlines()[0])
    parser.add_argument(
        "--events", type=int, metavar="N", help="about N purchases: all those of fewer customers (1,000 or more)"
    )
    options = parser.parse_args(arguments)
    if options.events is not None and options.events < 1000:
        parser.error("--events: fewer than 1,000 leave too little to judge")
    return status_of(partial(_demo, options, Screen()))


def _demo(options: argparse.Namespace, screen: Screen) -> int:
    screen.title("Will this customer buy again within 60 days? A model answers at each purchase, as it happens.")
    with screen.step("data") as step:
        events = observations()
        step.result = f"{PURCHASES:,} purchases of {CUSTOMERS:,} customers, January 1997 to June 1998"
    with screen.step("training") as step:
        kept = versions.folder().exists()
        store = versions.trained(events)
        step.result = f"versions {OLD} and {NEW}, {'as trained before' if kept else 'on the first 120 days'}"
    if options.events is not None:
        events = sample(events, options.events)
    web_port = options.web_port or free_port(WEB_PORT)
    with tempfile.TemporaryDirectory(prefix="homunculus-demo-") as folder:
        own = Path(folder, "store")
        shutil.copytree(store, own)  # what a run trains is of that run alone
        demo = Demo(events, own, options.broker, web_port, screen)
        return run(demo.run(Path(folder), keep=options.keep), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
