"""Posts are signed as Standard Webhooks says, and repeated within bounds."""

from __future__ import annotations

import time

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from agents import webhook
from agents.webhook import TRIED_S, Webhook, key_of, signature, signed

SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
BODY = b'{"event_type":"ping","data":{"success":true}}'


def test_the_example_of_standard_webhooks_has_its_signature() -> None:
    """Source: the example in the specification's repository, github.com/standard-webhooks/standard-webhooks."""
    made = signature("msg_loFOjxBNrRLzqYUf", BODY, key_of(SECRET), 1731705121)
    assert made == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def test_an_alert_has_one_name_however_often_it_is_posted() -> None:
    first, second = signed("a/0/1/drift/m@1/opened", BODY, None, 1), signed("a/0/1/drift/m@1/opened", BODY, b"k", 2)
    assert first["webhook-id"] == second["webhook-id"]
    assert "webhook-signature" not in first


def test_a_secret_that_is_no_base64_is_taken_as_it_is() -> None:
    assert key_of("whsec_???") == b"whsec_???"
    assert key_of("plain") == b"plain"


@pytest.mark.parametrize(("age", "tries"), [(TRIED_S + 60, 1), (0.0, 4)])
async def test_a_receiver_that_chokes_on_an_alert_holds_up_the_next_ones_for_three_days_at_most(
    age: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "FIRST_PAUSE_S", 0.001)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["webhook-id"])
        return web.Response(status=500 if len(asked) < 4 else 204)

    application = web.Application()
    application.add_routes([web.post("/hook", answer)])
    async with TestServer(application) as server, ClientSession() as session:
        hook = Webhook(session, str(server.make_url("/hook")), None)
        await hook.post("a/0/1/drift/m@1/opened", BODY, time.time() - age)
    assert len(asked) == tries
    assert len(set(asked)) == 1
