"""GET /openapi.json: the routes for programs, out of the types that their answers and bodies are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import Meta
from pydantic import BaseModel, TypeAdapter

from core.events import ModelName
from engine.app import App
from web import answers
from web.access import OPEN, closed
from web.operations import JSON, OPERATIONS, Operation, operation

VERSION: Final = "3.1.0"
REFERENCE: Final = "#/components/schemas/{name}"
BEARER: Final = {"bearer": {"type": "http", "scheme": "bearer"}}


class OpenApi:
    """Tells of every route whose handler does (web/operations.py)."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        """GET /openapi.json."""
        return [web.get("/openapi.json", self.document)]

    @operation(Operation(gives=dict[str, Any]))
    async def document(self, request: web.Request) -> web.Response:
        """This document (OpenAPI 3.1)."""
        return answers.json(self.of(request.app.router.routes()))

    def of(self, routes: Iterable[web.AbstractRoute]) -> dict[str, Any]:
        """The document of these routes."""
        told = [
            (route.method.lower(), route.resource.canonical, inspect.getdoc(route.handler) or "", operation)
            for route in routes
            if route.resource is not None and route.method != "HEAD"
            if (operation := OPERATIONS.get(getattr(route.handler, "__func__", route.handler))) is not None
        ]
        types = [kind for *_, one in told for kind in (one.gives, one.takes, *one.also.values()) if kind is not None]
        schemas, components = _schemas([*types, answers.Refusal])
        paths: dict[str, Any] = {}
        for method, path, doc, one in told:
            paths.setdefault(path, {})[method] = self._operation(path, doc, one, schemas)
        document: dict[str, Any] = {
            "openapi": VERSION,
            "info": {"title": "Homunculus worker", "version": "1", "description": self._app.engine.name},
            "paths": paths,
            "components": {"schemas": components},
        }
        if closed(self._app.settings):
            document["components"]["securitySchemes"] = BEARER
            document["security"] = [{"bearer": []}]
        return document

    def _operation(self, path: str, doc: str, one: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
        parameters = [self._in_path(name) for name in re.findall(r"{(\w+)}", path)]
        parameters += [
            {
                "name": given.name,
                "in": "query",
                "schema": msgspec.json.schema(given.kind),
                "description": given.help,
                **({"required": True} if given.required else {}),
            }
            for given in one.parameters
        ]
        headers = {name: {"schema": {"type": "string"}, "description": says} for name, says in one.headers.items()}
        good = {"description": "as asked", "content": {one.media: {"schema": schemas[one.gives]}}, "headers": headers}
        told: dict[str, Any] = {
            "summary": doc.partition("\n\n")[0].replace("\n", " "),
            "parameters": parameters,
            "responses": {
                str(one.status): good,
                **{str(status): _other(kind, schemas) for status, kind in one.also.items()},
                "default": {
                    "description": "a refusal, or a fault, in words; 503 with Retry-After: ask again",
                    "content": {JSON: {"schema": schemas[answers.Refusal]}},
                },
            },
        }
        if one.takes is not None:
            told["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[one.takes]}}}
        if path in OPEN:
            told["security"] = []
        return told

    def _in_path(self, name: str) -> dict[str, Any]:
        schema: dict[str, Any]
        match name:
            case "table":
                schema = {"type": "string", "enum": sorted(self._app.engine.tables)}
            case "key":
                schema = msgspec.json.schema(Annotated[str, Meta(min_length=1)])
            case _:
                schema = TypeAdapter(ModelName).json_schema()
        return {"name": name, "in": "path", "required": True, "schema": schema}


def _other(kind: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "not modified"}
    return {"description": "not so, and why", "content": {JSON: {"schema": schemas[kind]}}}


def _schemas(types: Iterable[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and what they refer to."""
    kinds = list(dict.fromkeys(types))
    models = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, BaseModel)]
    others = [kind for kind in kinds if kind not in models]
    found, components = msgspec.json.schema_components(others, ref_template=REFERENCE)
    schemas = dict(zip(others, found, strict=True))
    for model in models:
        schema = model.model_json_schema(ref_template=REFERENCE.replace("{name}", "{model}"))
        components |= schema.pop("$defs", {})
        components[model.__name__] = schema
        schemas[model] = {"$ref": REFERENCE.format(name=model.__name__)}
    return schemas, components
