"""Where the server listens, and what it refuses to listen on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from yarl import URL

from core.errors import SettingsError
from tests.unit.web.worker import Make, Start
from tests.worker import has_ipv6
from web.server import WebServer


@pytest.mark.parametrize("bind", ["0.0.0.0", "", "::"])
async def test_whatever_led_to_an_open_address_without_a_token_it_never_listens(make: Make, bind: str) -> None:
    worker = make()
    worker.app.conf.web_bind = bind  # as Faust's command line or environment would
    with pytest.raises(SettingsError, match="HOMUNCULUS_WEB_TOKEN"):
        await worker.start()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", worker.app.settings.web_port)) != 0


async def test_an_open_address_is_told_to_the_group_by_a_name_that_others_can_use(make: Make) -> None:
    worker = make(web_bind="0.0.0.0", web_token="all")
    await worker.start()
    assert worker.app.conf.canonical_url.host == socket.gethostname()
    assert worker.app.conf.canonical_url.port == worker.app.settings.web_port


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "localhost")])
async def test_a_bind_of_the_command_line_is_what_the_banner_and_the_group_say(
    make: Make, bind: str, host: str
) -> None:
    if bind == "::1" and not has_ipv6():
        pytest.skip("this machine has no ::1")
    worker = make()
    worker.app.conf.web_bind = bind
    address = f"http://{host}:{worker.app.settings.web_port}"
    assert WebServer(worker.app).web_url == address, "the banner comes before the start"
    await worker.start()
    assert worker.url == address
    async with worker.client.get(f"{address}/health/live") as answer:
        assert answer.status == 200


async def test_a_taken_port_is_an_error_that_names_it(start: Start, make: Make) -> None:
    first = await start()
    second = make(web_port=first.app.settings.web_port)
    with pytest.raises(SettingsError, match=rf"port {first.app.settings.web_port}.*--web-port"):
        await second.start()


async def test_an_address_of_another_machine_is_an_error_that_names_it(make: Make) -> None:
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1"):
        await make(web_bind="192.0.2.1", web_token="all").start()


async def test_another_transport_than_tcp_is_refused(make: Make, tmp_path: Path) -> None:
    worker = make()
    worker.app.conf.web_transport = URL(f"unix://{tmp_path}/socket")
    with pytest.raises(SettingsError, match="--web-transport"):
        await worker.start()
