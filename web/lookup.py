"""One value by its key, from whichever worker holds it: as it is, or from now on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from engine.app import App
from engine.table import RESERVED, Shard, Table
from web import answers
from web.errors import STATUS, NotOpenError, UnknownError, UnreachableError
from web.events import Events
from web.operations import Flag, Operation, Parameter, operation
from web.owners import CUT, STALENESS, Owners
from web.parameters import Place, flag, parameters, place_of, table_of
from web.values import ALONE, FOLLOWED, Look

SESSION: Final = Parameter(
    "session", Annotated[str, Meta(min_length=1)], "the session that the key belongs to, where its table can't say it"
)


class Followed(msgspec.Struct, omit_defaults=True):
    """A message of /tables/{table}/{key}/watch."""

    value: Any
    """null while there is none."""
    cut: bool = False
    """Whether only its beginning is shown."""
    skipped: int = 0
    """Commits since the message before that the reader was too slow for."""


class Lookup:
    """Reads what is finished; who follows a key sees what is committed."""

    def __init__(self, app: App, owners: Owners, events: Events) -> None:
        self._app = app
        self._owners = owners
        self._events = events

    def routes(self) -> list[web.RouteDef]:
        """GET /tables/{table}/{key} and /tables/{table}/{key}/watch."""
        return [
            web.get("/tables/{table}/{key:[^/]+}", self.value),
            web.get("/tables/{table}/{key:[^/]+}/watch", self.watch),
        ]

    @operation(
        Operation(
            also={304: None},
            headers={
                "ETag": "a hash of the answer: send it back as If-None-Match",
                STALENESS: "on what a copy answers: it has all that was committed so many ms ago, and perhaps more",
                CUT: "1 where only the beginning of a big value is shown",
            },
            parameters=(
                SESSION,
                Parameter("stale_ok", Flag, "1: a copy may answer while the owner can't"),
                Parameter("whole", Flag, "1: all of a big value"),
            ),
        )
    )
    async def value(self, request: web.Request) -> web.Response:
        """The value of one key; the key is percent-encoded, / as %2F. ?stale_ok=1: from a copy (HOMUNCULUS_STANDBYS)
        while the owner can't answer."""
        given = parameters(request, "session", "stale_ok", "whole")
        place = self._place(request, given)
        look = Look() if flag(given, "whole") else Look(ALONE)
        stale_ok = flag(given, "stale_ok")
        partition = self._owners.partition(place.session)
        try:
            shard = self._owners.here(place.table.name, partition)
            if shard is not None:
                return self._described(place, shard, look).response(request)
            answer = await self._owners.forward(request, partition)
        except (NotOpenError, UnreachableError):
            if stale_ok and (copied := await self._copied(request, place, partition, look)) is not None:
                return copied
            raise
        if answer.status == 503 and stale_ok:
            return await self._copied(request, place, partition, look) or answer
        return answer

    def at_once(self, name: str, encoded: str) -> answers.Tagged | None:
        """What value() finds here for the key of a path, if no parameters were given; None where another worker has
        it. Raises as value() does."""
        place = place_of(table_of(self._app, name), encoded, {})
        shard = self._owners.here(name, self._owners.partition(place.session))
        return None if shard is None else self._described(place, shard, Look(ALONE))

    def _place(self, request: web.Request, given: Mapping[str, str]) -> Place:
        return place_of(table_of(self._app, request.match_info["table"]), request.rel_url.raw_path.split("/")[3], given)

    async def _copied(self, request: web.Request, place: Place, partition: int, look: Look) -> web.Response | None:
        """What a copy says, here or on another worker; None where there is none."""
        copy = self._app.engine.standbys.copies.get(partition)
        if copy is None or copy.store is None or (age_s := copy.age_s) is None:
            return await self._owners.copy(request, partition)
        try:
            response = self._described(place, place.table.copied(copy.store), look).response(request)
        except UnknownError as unknown:  # of what age, too
            response = answers.refusal(unknown, STATUS[UnknownError])
        response.headers[STALENESS] = str(round(1e3 * age_s))
        return response

    def _described(self, place: Place, shard: Shard, look: Look) -> answers.Tagged:
        raw = _finished(shard, place.key)
        if raw is None:
            partition = self._owners.partition(place.session)
            raise UnknownError(f"table {place.table.name} has no value for this key (partition {partition})")
        value = look.at_value(place.table, shard, raw)
        return answers.tagged(value, {CUT: "1"} if look.cut else answers.NO_HEADERS)

    @operation(Operation(gives=Followed, media="text/event-stream", parameters=(SESSION,)))
    async def watch(self, request: web.Request) -> web.StreamResponse:
        """The value of one key as server-sent events: what it is, then what each commit makes of it. Ends with an event
        `end` when its partition moves, or the worker stops: connect again."""
        place = self._place(request, parameters(request, "session"))
        partition = self._owners.partition(place.session)
        shard = self._owners.here(place.table.name, partition)
        if shard is None:
            return await self._owners.follow(request, partition, self._events)
        return self._events.stream(self._changes(place, partition, shard))

    async def _changes(self, place: Place, partition: int, shard: Shard) -> AsyncIterator[Followed]:
        table, key = place.table, place.key
        with self._app.engine.watches.on(partition, table.name, key) as watch:
            if self._owners.here(table.name, partition) is not shard:
                return
            yield _followed(table, shard, None if key.startswith(RESERVED) else shard.stored(key))
            async for raw, skipped in watch:
                yield _followed(table, shard, raw, skipped)


def _finished(shard: Shard, key: bytes) -> bytes | None:
    return None if key.startswith(RESERVED) else shard.finished(key)


def _followed(table: Table[Any, Any], shard: Shard, raw: bytes | None, skipped: int = 0) -> Followed:
    look = Look(FOLLOWED)
    value = None if raw is None else look.at_value(table, shard, raw)
    return Followed(value, look.cut, skipped)
