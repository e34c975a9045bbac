"""What the detectors of every version see, from whichever workers hold them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from aiohttp import web

from engine.app import App
from tables.drift import page, references, watches
from web import answers
from web.errors import RequestError, UnknownError
from web.operations import Operation, operation
from web.owners import Owners
from web.parameters import parameters

SHORT: Final = ("subject", "model", "version", "preset", "answers", "unusable", "ts", "open")
"""What of a page the list shows."""
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}@[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Seen(msgspec.Struct, omit_defaults=True):
    """GET /drift: the versions whose answers were ever looked at."""

    worker: str
    """Who was asked."""
    versions: list[dict[str, Any]]
    """By name: as /drift/{version} shows each, without what is long; `quality` is its `performance.kept`."""
    trouble: dict[str, str] = {}
    """Worker -> why its part is missing."""


class Drift:
    """Reads what is finished: the owner of a version's key has its detectors."""

    def __init__(self, app: App, owners: Owners) -> None:
        self._app = app
        self._owners = owners

    def routes(self) -> list[web.RouteDef]:
        """GET /drift, /drift/here, /drift/{version}."""
        return [
            web.get("/drift", self.all),
            web.get("/drift/here", self.here),
            web.get("/drift/{version}", self.one),
        ]

    @operation(Operation(gives=Seen))
    async def all(self, request: web.Request) -> web.Response:
        """Every version: how its confidence stands, and what is wrong with it, on all workers."""
        parameters(request)
        return answers.json(await self.everywhere(request.headers.get("Authorization")))

    async def everywhere(self, authorization: str | None) -> Seen:
        """All workers' versions. authorization: the request's."""
        seen = Seen(self._app.engine.name, [short(found) for found in self._pages()])
        others = list(self._owners.others())
        asked = (self._owners.fetch(url, "/drift/here", authorization) for url in others)
        for url, told in zip(others, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            try:
                if isinstance(told, BaseException):
                    raise told
                seen.versions += msgspec.json.decode(told, type=Seen).versions
            except RequestError as error:
                seen.trouble[str(url)] = str(error)
            except msgspec.MsgspecError:
                seen.trouble[str(url)] = "answers in a form that this release doesn't know"
        seen.versions.sort(key=lambda found: str(found.get("subject")))
        return seen

    @operation(Operation(gives=Seen))
    async def here(self, request: web.Request) -> web.Response:
        """The same of this worker alone."""
        parameters(request)
        return answers.json(Seen(self._app.engine.name, [short(found) for found in self._pages()]))

    @operation(Operation())
    async def one(self, request: web.Request) -> web.Response:
        """All that the detectors of NAME@VERSION see: confidence over time, histograms, open conditions."""
        parameters(request)
        version = request.match_info["version"]
        if not _VERSION.fullmatch(version):
            raise UnknownError("a version is named NAME@VERSION: there is none of that name")
        partition = self._owners.partition(version.encode())
        watched = self._owners.here(watches.name, partition)
        held = self._owners.here(references.name, partition)
        if watched is None or held is None:
            return await self._owners.forward(request, partition)
        seen, reference = watched.finished(version.encode()), held.finished(version.encode())
        if seen is None or reference is None:
            raise UnknownError(f"no answer of {version} was looked at yet (partition {partition})")
        return answers.json(page(version, reference, seen))

    def _pages(self) -> Iterator[dict[str, Any]]:
        for _, task in sorted(self._app.engine.tasks.items()):
            if task.open:
                held = task.shard(references.name)
                for key, seen in task.shard(watches.name).walk(b""):
                    if (reference := held.finished(key)) is not None:
                        yield page(key.decode(), reference, seen)


def short(found: dict[str, Any]) -> dict[str, Any]:
    """What of a page a list shows."""
    told: dict[str, Any] = {name: found[name] for name in SHORT if name in found}
    if (kept := found.get("performance", {}).get("kept")) is not None:
        told["quality"] = kept
    return told
