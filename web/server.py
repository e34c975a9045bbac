"""The worker's one HTTP server: up before the broker is, closed to strangers, gone within two seconds."""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11, web
from faust.exceptions import AlreadyConfiguredWarning
from faust.types import AppT
from mode import Service
from yarl import URL

from core.errors import SettingsError, UsageError
from engine import tls
from engine.app import App
from web import answers
from web.access import Access, is_everything, is_loopback
from web.chat import Chat
from web.connections import Connections
from web.drift import Drift
from web.errors import status_of
from web.events import Events, EventStream
from web.health import Health
from web.history import History
from web.knowledge import Knowledge
from web.lookup import Lookup
from web.metrics import Metrics
from web.models import Models
from web.openapi import OpenApi
from web.overview import Overview
from web.owners import Owners
from web.page import Page
from web.protocol import Protocol
from web.replies import Replies
from web.shortcut import Shortcut
from web.tables import Tables

log = logging.getLogger(__name__)

NEIGHBOURS: Final = 20
"""Ports tried where none was asked for."""
HANDLE_S: Final = 15.0
"""Seconds that an answer may take, its body's arrival included."""
HANDSHAKE_S: Final = 5.0
"""Seconds that a connection has to become TLS."""
BACKLOG: Final = 128
"""Connections that may wait to be taken."""
LARGEST_BODY: Final = 64 << 10
SPOKEN: Final = (HttpVersion10, HttpVersion11)
KEYS: Final = "/tables/"
"""What is below it is a table's."""
STOP_S: Final = 0.5
"""Seconds that answers under way have when the worker stops, and again when they have been cancelled."""


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class WebServer(Service):
    """Serves our routes and the application's own pages; none of Faust's."""

    driver_version = "homunculus"

    def __init__(self, app: App, **options: Any) -> None:
        super().__init__(**options)
        self.app = app
        self._access: Access | None = None
        self._runner: web.AppRunner | None = None
        self._listening: list[asyncio.Server] = []
        self._owners = Owners(app)
        self._connections = Connections()
        self._events = Events()
        self._history = History(app.engine)
        self._lookup = Lookup(app, self._owners, self._events)

    async def on_start(self) -> None:
        """Binds and listens. Raises SettingsError: a rule is broken, or the port is taken."""
        conf = self.app.conf
        if conf.web_transport.scheme != "tcp":
            raise SettingsError(
                f"the web views are served over TCP, not {conf.web_transport.scheme}: drop --web-transport"
            )
        context = tls.served(self.app.settings)
        self._owners.trusted = tls.trusted(self.app.settings)
        # The last word on who may reach us is what the sockets say, whatever option or variable led there.
        sockets = self._bind(str(conf.web_bind or ""))
        try:
            bound = [str(s.getsockname()[0]) for s in sockets]
            self._access = Access(self.app.settings, bound)
            if context is None and not all(map(is_loopback, bound)):
                log.warning("Tokens and values cross the network as they are: HOMUNCULUS_WEB_CERT makes it https")
            self._runner = web.AppRunner(self.application(), handle_signals=False, shutdown_timeout=STOP_S)
            await self._runner.setup()
            server = self._runner.server
            assert server is not None
            server.request_handler = self._guard(server.request_handler)
            shortcut = Shortcut(self._access, self._lookup)
            for s in sockets:
                self._listening.append(
                    await self.loop.create_server(
                        lambda: Protocol(server, self._connections, shortcut),
                        sock=s,
                        backlog=BACKLOG,
                        ssl=context,
                        ssl_handshake_timeout=HANDSHAKE_S if context else None,
                        ssl_shutdown_timeout=STOP_S if context else None,
                    )
                )
        except BaseException:
            for s in sockets:
                s.close()
            raise
        self._advertise()
        self.add_future(self._connections.watch(server))
        self.add_future(self._end_streams())
        self.add_future(self._history.run())

    async def _end_streams(self) -> None:
        """When the application begins to stop, long before this server's turn comes."""
        await self.app.wait_until_stopped()
        self._events.stop()

    def _bind(self, host: str) -> list[socket.socket]:
        """The port that was asked for; where none was and the usual one is taken, the next that is free."""
        conf = self.app.conf
        first = int(conf.web_port)
        asked = "web_port" in self.app.settings.model_fields_set or first != self.app.settings.web_port
        for port in range(first, first + (1 if asked else NEIGHBOURS)):
            try:
                sockets = bind(host, port)
            except SettingsError:
                if port == first + (0 if asked else NEIGHBOURS - 1):
                    raise
                continue
            if port != first:
                log.warning("Port %d is taken: the web views of this worker are on port %d", first, port)
                self._move(port)
            return sockets
        raise AssertionError("the last port returns or raises")

    def _move(self, port: int) -> None:
        conf = self.app.conf
        with warnings.catch_warnings():  # Faust warns of late changes; the group reads it only when it is joined
            warnings.simplefilter("ignore", AlreadyConfiguredWarning)
            conf.web_port = port
            conf.canonical_url = conf.canonical_url.with_port(port)

    def _advertise(self) -> None:
        """The group is told the address that others reach us at."""
        conf, address = self.app.conf, self._address()
        if address != conf.canonical_url:
            conf.web_host = address.host or ""
            with warnings.catch_warnings():  # Faust warns of late changes; the group reads it only when it is joined
                warnings.simplefilter("ignore", AlreadyConfiguredWarning)
                conf.canonical_url = address

    def _address(self) -> URL:
        """The one that was named with --web-host; else where we are bound, and the host's name where that is
        everywhere. A loopback's name is no such name: there are several."""
        conf, scheme = self.app.conf, "http" if self.app.settings.web_cert is None else "https"
        bind, told = str(conf.web_bind or ""), conf.canonical_url
        if not is_loopback(told.host or "") and not is_everything(told.host or ""):
            return told.with_scheme(scheme)
        host = socket.gethostname() if is_everything(bind) else bind.strip("[]")
        return URL.build(scheme=scheme, host=host, port=int(conf.web_port))

    @property
    def web_url(self) -> str:
        """As the banner and the group name this worker."""
        return str(self._address())

    async def on_stop(self) -> None:
        """Answers under way end or are cut off; nothing listens any more."""
        self._events.stop()
        for listening in self._listening:
            listening.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._owners.close()

    def application(self) -> web.Application:
        """Every route, ours first. Raises UsageError for a page of the application at one of our paths."""
        application = web.Application(client_max_size=LARGEST_BODY)
        app, owners, events = self.app, self._owners, self._events
        drift = Drift(app, owners)
        views = (self._lookup, Tables(app), Models(app, drift), drift, Knowledge(app), Metrics(app))
        overview = Overview(app, owners, events, self._history)
        replies = Replies(app, owners, events)
        talk = (replies, Chat(app, replies, events))
        for part in (Health(app), *views, overview, *talk, Page(), OpenApi(app)):
            application.add_routes(part.routes())
        taken = {(r.method, r.resource.canonical) for r in application.router.routes() if r.resource is not None}
        for route in page_routes(self.app):
            assert route.resource is not None
            path = route.resource.canonical
            if (route.method, path) in taken or path.startswith(KEYS):
                raise UsageError(
                    f"app.page({path!r}): {route.method} {path} is a route of the worker; take another path"
                )
            application.router.add_route(route.method, path, route.handler)
        return application

    def _guard(self, handler: Handler) -> Handler:
        """Nothing is answered without passing here: rights, time, errors in words, headers."""

        async def guarded(request: web.BaseRequest) -> web.StreamResponse:
            with self._connections.busy(request.protocol):
                if request._version not in SPOKEN:
                    # aiohttp answers in what it is asked in, as it stands when request.version is first looked at.
                    request._version = HttpVersion10
                    return answers.sealed(answers.fault(400, "this worker speaks HTTP/1.1: name it in the first line"))
                response = answers.sealed(await self._answer(request, handler))
                if isinstance(response, EventStream):
                    await response.run(request)
                return response

        return guarded

    async def _answer(self, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        assert self._access is not None
        try:
            self._access.check(request)
            async with asyncio.timeout(HANDLE_S):
                return await handler(request)
        except web.HTTPException as error:
            response = answers.fault(error.status, error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except ConnectionResetError:
            return answers.fault(400, "the client has gone")  # nobody reads it, and there is nothing to log
        except Exception as error:
            if (status := status_of(error)) is not None:
                return answers.refusal(error, status)
            log.error("A web view failed", exc_info=error)
            return answers.fault(500, answers.OUR_FAULT)


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address that a host has ("" means all), not listening yet.

    Raises SettingsError naming host and port.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SettingsError(f"HOMUNCULUS_WEB_BIND is {host!r}, which is no address of this machine: {error}") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            s = socket.socket(family, kind, protocol)
            sockets.append(s)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind(address)
            s.setblocking(False)
    except OSError as error:
        for s in sockets:
            s.close()
        raise SettingsError(
            f"the web views can't listen on {host or 'every address'} port {port} ({error.strerror or error}): another "
            "worker may hold it; choose one with HOMUNCULUS_WEB_PORT or --web-port"
        ) from error
    return sockets


def page_routes(app: AppT) -> list[web.AbstractRoute]:
    """The routes of @app.page, as Faust's driver would have served them."""
    driver: Any = app.web
    return list(driver.web_app.router.routes())


def serve(app: App) -> WebServer:
    """Makes this server the application's only one."""
    server = WebServer(app)
    app.web_server(server)
    return server
