"""What the server says: headers, refusals, faults, requests that make no sense."""

from __future__ import annotations

import asyncio

import pytest
from yarl import URL

from tests.unit.web.worker import Notes, Start


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 503),
        ("GET", "/tables", 200),
        ("GET", "/models", 200),
        ("GET", "/nothing/here", 404),
        ("DELETE", "/tables", 405),
        ("POST", "/models/churn", 400),
    ],
)
async def test_every_answer_carries_the_security_headers(start: Start, method: str, path: str, status: int) -> None:
    worker = await start()
    async with worker.client.request(method, path) as answer:
        assert answer.status == status
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "aiohttp" not in answer.headers["Server"].lower()


@pytest.mark.parametrize(
    "path",
    ["/router/", "/router/notes/", "/table/", "/tables/notes/x/y", "/stats/", "/assignment/", "/graph/"],
)
async def test_fausts_own_routes_are_not_served(start: Start, path: str) -> None:
    status, _ = await (await start()).get(path)
    assert status == 404


async def test_without_the_token_the_answer_says_what_to_send_and_nothing_else(start: Start) -> None:
    worker = await start(web_token="all")
    async with worker.client.get("/tables/notes/secret-key") as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        text = await answer.text()
    assert "HOMUNCULUS_WEB_TOKEN" in text
    assert "secret-key" not in text


async def test_a_fault_of_ours_is_told_without_its_words(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    worker.put("k", "v")
    monkeypatch.setattr(Notes, "describe", lambda *_: (_ for _ in ()).throw(ValueError("the payload")))
    status, body = await worker.get("/tables/notes/k")
    assert status == 500
    assert "payload" not in str(body)
    assert "the payload" in caplog.text


async def test_a_large_body_is_refused(start: Start) -> None:
    worker = await start()
    async with worker.client.post("/models/churn", json={"reason": "x" * 100_000}) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    ("name", "body", "kind", "names"),
    [
        ("churn", b"{", "application/json", "JSON"),
        ("churn", b"\xff", "application/json", "JSON"),
        ("churn", b"[" * 30_000, "application/json", "JSON"),
        ("churn", b'{"based_on": ' + b"1" * 5000 + b"}", "application/json", "JSON"),
        ("churn", b'{"limits": {"a": ' + b"1" * 400 + b"}}", "application/json", "limits"),
        ("churn", b'{"limits": {"a": 1e400}}', "application/json", "limits"),
        ("churn", b'{"share": NaN}', "application/json", "share"),
        ("churn", b'{"share": false}', "application/json", "share"),
        ("churn", b'{"reason": "\\ud800"}', "application/json", "reason"),
        ("churn", b'{"action": "erase", "session": "s"}', "application/json", "session"),
        ("churn", b"[]", "application/json", "body"),
        ("churn", b'{"active": "../../x"}', "application/json", "active"),
        ("churn", b'{"action": "explode"}', "application/json", "action"),
        ("churn", b'{"active": "2"}', "text/plain", "application/json"),
        ("..%2fchurn", b'{"active": "2"}', "application/json", "pattern"),
    ],
)
async def test_a_control_request_that_makes_no_sense_is_never_published(
    start: Start, name: str, body: bytes, kind: str, names: str
) -> None:
    worker = await start()
    url = URL(f"/models/{name}", encoded=True)
    async with worker.client.post(url, data=body, headers={"Content-Type": kind}) as answer:
        assert answer.status == 400
        assert names in await answer.text()


async def test_a_good_control_request_before_the_broker_is_there_is_asked_for_again(start: Start) -> None:
    worker = await start()
    async with worker.client.post("/models/churn", json={"active": "2"}) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"HUSH\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00HUSH", 400),
        (b"GET /HUSH HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization Bearer HUSH\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: HUSH\r\n\r\n", 400),
        (b"GET /" + b"HUSH" * 5000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: HUSH\r\n\r\n", 417),
        (b"GET http://[HUSH/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (
            b"POST /models/churn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nHUSH\r\n",
            400,
        ),
    ],
)
async def test_what_is_no_http_is_refused_without_its_words_or_our_versions(
    start: Start, caplog: pytest.LogCaptureFixture, raw: bytes, status: int
) -> None:
    worker = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.app.settings.web_port)
    writer.write(raw)
    answer = (await asyncio.wait_for(reader.readuntil(b"}"), 5)).decode()
    writer.close()
    assert f" {status} " in answer.splitlines()[0]
    assert "X-Content-Type-Options: nosniff" in answer
    assert "Server: homunculus" in answer
    for word in ("HUSH", "aiohttp", "Python"):
        assert word.lower() not in answer.lower()
        assert word.lower() not in caplog.text.lower()
