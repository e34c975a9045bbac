"""GET /openapi.json: every route of ours is told of, and what is told is what is answered."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from tests.unit.web.worker import PARTITIONS, Make, Start, Worker

CONTRACT = {
    "/health/live": {"get"},
    "/health/ready": {"get"},
    "/tables": {"get"},
    "/tables/{table}": {"get"},
    "/tables/{table}/{key}": {"get"},
    "/tables/{table}/{key}/watch": {"get"},
    "/models": {"get"},
    "/models/{name}": {"post"},
    "/openapi.json": {"get"},
    "/replies": {"get"},
    "/v1/chat/completions": {"post"},
    "/v1/models": {"get"},
    "/overview": {"get"},
    "/overview/here": {"get"},
    "/overview/watch": {"get"},
}


async def document(worker: Worker, **headers: str) -> dict[str, Any]:
    status, body = await worker.get("/openapi.json", **headers)
    assert status == 200
    assert body["openapi"].startswith("3.1")
    found: dict[str, Any] = body
    return found


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [r for value in node.values() for r in references(value)]
    return [r for item in node for r in references(item)] if isinstance(node, list) else []


def schema(told: dict[str, Any], path: str, status: str) -> dict[str, Any]:
    """What a GET of a path answers, complete in itself."""
    responses = told["paths"][path]["get"]["responses"]
    content = responses.get(status, responses["default"])["content"]["application/json"]["schema"]
    return {**content, "components": told["components"]}


async def test_every_route_of_the_contract_is_told_of_and_every_reference_leads_somewhere(start: Start) -> None:
    told = await document(await start())
    for path, methods in CONTRACT.items():
        assert methods <= told["paths"][path].keys(), path
        for method in methods:
            assert told["paths"][path][method]["summary"], path
    for reference in references(told):
        assert reference.rpartition("/")[2] in told["components"]["schemas"]


async def test_what_is_told_is_what_is_answered(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("big", "x" * 10_000)
    worker.put("k", "v")
    told = await document(worker)
    for route, path in (
        ("/health/live", "/health/live"),
        ("/health/ready", "/health/ready"),
        ("/tables", "/tables"),
        ("/tables/{table}", "/tables/notes?limit=1"),
        ("/tables/{table}", "/tables/notes?limit=0"),
        ("/tables/{table}", "/tables/notes?prefix=b"),
        ("/tables/{table}/{key}", "/tables/notes/big"),
        ("/tables/{table}/{key}", "/tables/notes/nothing"),
        ("/models", "/models"),
        ("/v1/models", "/v1/models"),
        ("/replies", "/replies?session=ann"),
        ("/overview", "/overview"),
        ("/overview", "/overview?after=x"),
        ("/overview/here", "/overview/here"),
        ("/openapi.json", "/openapi.json"),
    ):
        status, body = await worker.get(path)
        validator = jsonschema_rs.validator_for(schema(told, route, str(status)))
        assert not [error.message for error in validator.iter_errors(body)], path


async def test_refusals_have_one_shape(start: Start) -> None:
    worker = await start(web_token="all")
    told = await document(worker, Authorization="Bearer all")
    refusal = jsonschema_rs.validator_for(schema(told, "/tables", "default"))
    for method, path in (("GET", "/tables"), ("GET", "/nothing"), ("DELETE", "/tables"), ("POST", "/models/x")):
        async with worker.client.request(method, path) as answer:
            assert answer.status >= 400
            assert refusal.is_valid(json.loads(await answer.text()))


async def test_tables_are_named_and_tokens_told_of_where_they_are_asked_for(start: Start) -> None:
    told = await document(await start(web_read_token="read"), Authorization="Bearer read")
    (table, key, *_) = told["paths"]["/tables/{table}/{key}"]["get"]["parameters"]
    assert table["schema"]["enum"] == ["blobs", "clicks", "notes", "profiles"]
    assert key["schema"]["minLength"] == 1
    assert told["security"] == [{"bearer": []}]
    assert told["paths"]["/health/live"]["get"]["security"] == []
    assert "security" not in await document(await start())


async def test_what_a_model_may_be_asked_for_is_told_without_what_erases_sessions(start: Start) -> None:
    told = await document(await start())
    request = told["paths"]["/models/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**request, "components": told["components"]})
    assert validator.is_valid({"active": "2"})
    assert validator.is_valid({"action": "promote", "version": "2", "reason": "better"})
    wrong: Any
    for wrong in ({"action": "erase", "session": "s"}, {"active": "../x"}, {"nonsense": 1}, [], "2"):
        assert not validator.is_valid(wrong), wrong


async def test_pages_of_the_application_are_left_out(make: Make) -> None:
    worker = make()

    @worker.app.page("/hello")
    async def hello(view: Any, request: Any) -> Any:
        return view.json({})

    assert "/hello" not in (await document(await worker.start()))["paths"]
