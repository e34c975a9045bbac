"""Models as this worker has them, and requests on their way to the judge."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from core.errors import ModelError
from core.events import Action, ModelName
from core.topics import CONTROL
from engine.app import App
from engine.publisher import partition_of
from models.status import Status
from web import answers
from web.drift import Drift
from web.errors import MalformedError, NotOpenError
from web.operations import Operation, operation
from web.parameters import parameters

_name = TypeAdapter(ModelName).validate_python


class ModelList(msgspec.Struct, omit_defaults=True):
    """GET /models."""

    worker: str
    models: dict[str, Status]
    """What is live here of each, with its figures, and what is wanted."""
    store: dict[str, list[str]]
    """Model -> its versions in the store."""
    quality: dict[str, Any]
    """NAME@VERSION -> what labels say of its answers, by event time, and of which: as `/drift` has it, of all workers.
    Of versions whose manifest awaits feedback."""
    device: str
    """What models run on here: cpu, or cuda:0."""
    store_error: str | None = None
    fallback: str | None = None
    """Why they run on the CPU though a GPU was to be taken."""


def _whole(value: Any) -> Any:
    """JSON doesn't tell 3.0 from 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class ModelRequest(Action):
    """What is wanted of a model: {"active": "2"}, or the long form. Its owner judges it."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    action: Literal[
        "deploy",
        "promote",
        "canary",
        "shadow",
        "rollback",
        "freeze",
        "unfreeze",
        "unload",
        "backfill",
        "reset",
        "acknowledge",
        "resolve",
    ] = "deploy"
    since: Annotated[int, Field(ge=0, le=253_402_300_799_999), BeforeValidator(_whole)] | None = None
    based_on: Annotated[int, Field(ge=0), BeforeValidator(_whole)] | None = None
    figures: None = None
    """Limits alone give them."""
    began: None = None
    until: None = None
    """Detectors alone give both."""
    session: None = None
    """Sessions are erased by `faust -A app tables erase SESSION`."""


class RequestTaken(msgspec.Struct):
    """POST /models/{name}: where the request stands."""

    id: str
    model: str
    topic: str
    partition: int


class Models:
    """Reading is this worker's view; writing only publishes: the model's owner judges, every worker follows."""

    def __init__(self, app: App, drift: Drift) -> None:
        self._app = app
        self._drift = drift

    def routes(self) -> list[web.RouteDef]:
        """GET /models, POST /models/{name}."""
        return [web.get("/models", self.listed), web.post("/models/{name}", self.request)]

    @operation(Operation(gives=ModelList))
    async def listed(self, request: web.Request) -> web.Response:
        """What is live here, what is wanted, and what the store holds."""
        parameters(request)
        models = self._app.engine.models
        body = ModelList(
            self._app.engine.name,
            msgspec.convert(models.status(), dict[str, Status]),
            {},
            await self._quality(request.headers.get("Authorization")),
            device=models.device.runs_on,
            fallback=models.device.fallback,
        )
        try:
            body.store = await asyncio.to_thread(_versions, models.store)
        except ModelError as error:
            body.store_error = str(error)
        return answers.json(body)

    async def _quality(self, authorization: str | None) -> dict[str, Any]:
        """Other workers are asked where there is something to be had."""
        if not any(version.manifest.feedback for version in self._app.engine.models.versions()):
            return {}
        versions = (await self._drift.everywhere(authorization)).versions
        return {found["subject"]: found["quality"] for found in versions if "quality" in found}

    @operation(Operation(gives=RequestTaken, status=202, takes=ModelRequest))
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
            action = ModelRequest.model_validate(json.loads(raw))
        except ValidationError:
            raise
        except (ValueError, RecursionError):  # not JSON, not UTF-8, a number with thousands of digits
            raise MalformedError('the body is not JSON; send e.g. {"active": "2"}') from None
        if action.id is None:
            action = action.model_copy(update={"id": uuid.uuid4().hex})
        if not self._app.engine.started_consuming:
            raise NotOpenError("the worker has not reached its broker yet: ask again")
        await self._app.publisher.publish(CONTROL, name, action)
        topic = self._app.engine.topic_name(CONTROL)
        partition = partition_of(name.encode(), self._app.settings.partitions)
        return answers.json(RequestTaken(str(action.id), name, topic, partition), 202)


def _versions(store: Any) -> dict[str, list[str]]:
    return {name: store.versions(name) for name in store.models()}
