"""No variable and no option of Faust's undoes the rule: an address that others reach needs a token."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest

from tests.rig import Rig
from tests.worker import Worker, until


def listening(worker: Worker) -> set[str]:
    """The addresses on which the worker takes connections."""
    return {
        connection.laddr.ip
        for connection in psutil.Process(worker.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def post(worker: Worker, path: str, token: str | None) -> int:
    """The status of a POST of an empty request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{worker.port}{path}", b"{}", {"Content-Type": "application/json"}
    )
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        pytest.param({"web_bind": "0.0.0.0"}, [], id="our setting"),
        pytest.param({}, ["--web-bind", "0.0.0.0"], id="Faust's option"),
    ],
)
def test_an_open_bind_without_a_token_does_not_start(rig: Rig, settings: dict[str, Any], arguments: list[str]) -> None:
    worker = rig.worker("a", arguments=arguments, **settings).start()
    assert worker.wait(40) > 0, worker.log()
    assert "HOMUNCULUS_WEB_TOKEN" in worker.log(), worker.log()
    assert "0.0.0.0" in worker.log(), worker.log()


def test_fausts_own_variables_open_nothing_and_on_loopback_the_views_need_no_token(rig: Rig) -> None:
    worker = rig.worker("a")
    for prefix in ("", "FAUST_", "NODE_", "APP_"):
        worker.environment[f"{prefix}WEB_BIND"] = "0.0.0.0"
    worker.start()
    until(lambda: worker.get("/health/live").status == 200, 40, what="alive", alive=[worker])
    assert listening(worker) == {"127.0.0.1"}
    assert worker.get("/tables").status == 200


def test_with_a_token_the_open_bind_serves_only_those_who_have_it(rig: Rig) -> None:
    worker = rig.worker("a", arguments=["--web-bind", "0.0.0.0"], web_token="all", web_read_token="read").start()
    until(lambda: worker.get("/health/live").status == 200, 40, what="alive", alive=[worker])
    for path in ("/tables", "/tables/sessions/s1", "/models", "/metrics"):
        assert worker.get(path).status == 401, path
        assert worker.get(path, token="wrong").status == 401, path
        assert worker.get(path, token="read").status in {200, 404, 503}, path
        assert worker.get(path, token="all").status in {200, 404, 503}, path
    assert worker.get("/health/live").status == 200
    assert post(worker, "/models/tally", None) == 401
    assert post(worker, "/models/tally", "read") == 403
    assert post(worker, "/models/tally", "all") not in {401, 403}
