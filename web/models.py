"""Models as this worker has them, and requests on their way to the judge."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from core.errors import ModelError
from core.events import Action, ModelName
from core.topics import CONTROL
from engine.app import App
from engine.publisher import partition_of
from web import answers
from web.errors import MalformedError, NotOpenError

_name = TypeAdapter(ModelName).validate_python


class Models:
    """Reading is this worker's view; writing only publishes: the model's owner judges, every worker follows."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        """GET /models, POST /models/{name}."""
        return [web.get("/models", self.listed), web.post("/models/{name}", self.request)]

    async def listed(self, request: web.Request) -> web.Response:
        """What is live here, what is wanted, and what the store holds."""
        models = self._app.engine.models
        body: dict[str, Any] = {"worker": self._app.engine.name, "models": models.status()}
        try:
            body["store"] = await asyncio.to_thread(_versions, models.store)
        except ModelError as error:
            body["store"], body["store_error"] = {}, str(error)
        return answers.json(body)

    async def request(self, request: web.Request) -> web.Response:
        """Publishes {"active": "2"}, or the long form, on control.

        202: what the judge makes of it is a record on deployments, or on alerts.
        """
        name = _name(request.match_info["name"])
        if request.content_type != "application/json":
            # A page of another site can send plain text without being asked; JSON it can't.
            raise MalformedError("send the request as JSON, with the header `Content-Type: application/json`")
        raw = await request.read()
        try:
            action = Action.model_validate(json.loads(raw))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise MalformedError('the body is not JSON; send e.g. {"active": "2"}') from None
        if action.session is not None:
            raise MalformedError("a session is erased by `faust -A app tables erase SESSION`, not by a model's request")
        if action.id is None:
            action = action.model_copy(update={"id": uuid.uuid4().hex})
        if not self._app.engine.started_consuming:
            raise NotOpenError("the worker has not reached its broker yet: ask again")
        await self._app.publisher.publish(CONTROL, name, action)
        topic = self._app.engine.topic_name(CONTROL)
        partition = partition_of(name.encode(), self._app.settings.partitions)
        return answers.json({"id": action.id, "model": name, "topic": topic, "partition": partition}, 202)


def _versions(store: Any) -> dict[str, list[str]]:
    return {name: store.versions(name) for name in store.models()}
