"""The whole application at a look: what each worker reports of itself, put side by side by the one that is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from core.events import Alert
from core.topics import ALERTS
from engine.app import App
from engine.tail import Tail, Told
from models.comparison import Comparison, compare
from models.status import Status, read
from web import answers
from web.errors import MalformedError
from web.events import Events
from web.history import History
from web.operations import Operation, Parameter, operation
from web.owners import Owners
from web.parameters import parameters
from web.peers import Peers
from web.report import Report, Reporter

NEWEST_ALERTS: Final = 30
EVERY_S: Final = 1.0
AFTER_S: Final = 0.15
"""How long after a full second a frame is made: the samples of that second are there."""
AFTER: Final = Parameter(
    "after", Annotated[str, Meta(pattern="^[0-9]{1,12}$")], "seconds since epoch: samples up to then are left out"
)


class Shown(msgspec.Struct, frozen=True):
    """An alert without its evidence, which may be large."""

    at: int
    """ms since epoch."""
    id: str
    kind: str
    severity: str
    state: str
    subject: str
    title: str

    @classmethod
    def of(cls, told: Told[Alert]) -> Shown:
        """An alert that was read."""
        alert = told.value
        return cls(told.at, alert.id, alert.kind, alert.severity, alert.state, alert.subject, alert.title)


class Member(msgspec.Struct, frozen=True):
    """One worker of the application."""

    url: str
    """Where it takes requests."""
    here: bool
    """Whether it is the one that was asked."""
    partitions: list[int]
    """Those that the group has given it."""
    trouble: str | None
    """Why it doesn't report at the moment."""
    report: Report | None
    """Its newest; null while it has never reported."""


class Frame(msgspec.Struct, omit_defaults=True):
    """The application in one moment."""

    application: str
    now: int
    """ms since epoch, by the clock of the worker that was asked."""
    partitions: int
    """How many there are."""
    workers: list[Member]
    models: dict[str, Comparison]
    """The versions of each model side by side, of all workers that report."""
    alerts: list[Shown] | None = None
    """The newest first; followed only, and only where there are others than in the frame before."""
    alerts_trouble: str | None = None
    """Why they can't be read."""


class Overview:
    """GET /overview once, or followed, a frame a second."""

    def __init__(self, app: App, owners: Owners, events: Events, history: History) -> None:
        self._app = app
        self._events = events
        self._peers = Peers(owners)
        self._reporter = Reporter(app, history)
        self._watchers = 0
        self._alerts: Tail[Alert] | None = None
        self._reading: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """GET /overview, /overview/here, /overview/watch."""
        return [
            web.get("/overview", self.all),
            web.get("/overview/here", self.here),
            web.get("/overview/watch", self.watch),
        ]

    @operation(Operation(gives=Frame, parameters=(AFTER,)))
    async def all(self, request: web.Request) -> web.Response:
        """Every worker: its partitions and their lag, its models, its dead letters, and what it did in each of the last
        five minutes' seconds."""
        return answers.json(await self._frame(request.headers.get("Authorization"), {}, _after(request)))

    @operation(Operation(gives=Report, parameters=(AFTER,)))
    async def here(self, request: web.Request) -> web.Response:
        """The same of this worker alone."""
        return answers.json(self._reporter.report(_after(request)))

    @operation(Operation(gives=Frame, media="text/event-stream"))
    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Every worker as server-sent events, one a second: the first with the last five minutes, the others with what
        is new; and the newest alerts whenever there are others."""
        parameters(request)
        return self._events.stream(self._frames(request.headers.get("Authorization")))

    async def _frames(self, authorization: str | None) -> AsyncIterator[Frame]:
        sent: dict[str, int] = {}
        told = -1
        self._watchers += 1
        try:
            while True:
                frame = await self._frame(authorization, sent, 0)
                alerts = self._read_alerts()
                if alerts is not None and alerts.version != told:
                    told = alerts.version
                    frame.alerts, frame.alerts_trouble = list(map(Shown.of, alerts.values)), alerts.trouble
                for member in frame.workers:
                    if member.report is not None and member.report.samples:
                        sent[member.url] = member.report.samples[-1].t
                yield frame
                await asyncio.sleep((AFTER_S - time.time()) % EVERY_S or EVERY_S)
        finally:
            self._watchers -= 1
            if not self._watchers and self._reading is not None:
                self._reading.cancel()
                self._reading = self._alerts = None

    async def _frame(self, authorization: str | None, sent: Mapping[str, int], after: int) -> Frame:
        """sent: url -> the second of the newest sample that the reader has of a worker; after: of all others."""
        app = self._app
        peers = await self._peers.look(authorization)
        us = str(app.conf.canonical_url)
        ours = self._reporter.report(sent.get(us, after))
        members = [Member(us, True, sorted(app.engine.tasks), None, ours)]
        for peer in peers:
            url = str(peer.url)
            report = peer.report and msgspec.structs.replace(peer.report, samples=peer.since(sent.get(url, after)))
            members.append(Member(url, False, peer.partitions, peer.trouble, report))
        now = round(time.time() * 1e3)
        return Frame(app.settings.app_id, now, app.settings.partitions, members, _compared(members))

    def _read_alerts(self) -> Tail[Alert] | None:
        """The newest alerts, which are read while somebody watches; None before the broker is reached."""
        if self._alerts is None and self._app.engine.started_consuming:
            self._alerts = Tail(self._app.engine.connection, ALERTS, NEWEST_ALERTS)
            self._reading = asyncio.create_task(self._alerts.run())
        return self._alerts


def _compared(members: list[Member]) -> dict[str, Comparison]:
    told: dict[str, dict[str, Status]] = {}
    for member in members:
        if member.report is not None and member.trouble is None:
            for model, one in member.report.models.items():
                if (status := read(one)) is not None:
                    told.setdefault(model, {})[member.report.worker] = status
    return {model: compare(workers) for model, workers in sorted(told.items())}


def _after(request: web.Request) -> int:
    text = parameters(request, AFTER.name).get(AFTER.name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise MalformedError("after must be whole seconds since epoch")
    return int(text)
