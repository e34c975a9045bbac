"""Who may ask: a token wherever others reach the worker, and on loopback no page of another site."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from pydantic import SecretStr

from core.errors import SettingsError
from core.settings import Settings
from web.access import Access, is_loopback
from web.errors import ForbiddenError, UnauthorizedError


def settings(token: str | None = None, read_token: str | None = None) -> Settings:
    return Settings(
        web_token=None if token is None else SecretStr(token),
        web_read_token=None if read_token is None else SecretStr(read_token),
    )


def request(method: str = "GET", path: str = "/tables", **headers: str) -> web.Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request(method, path, headers={"Host": "127.0.0.1:6066"} | named)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST", "localhost."])
def test_loopback_is_what_only_this_machine_reaches(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.example.org", "127.0.0.1.evil.org"])
def test_anything_else_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize("bound", [["0.0.0.0"], ["127.0.0.1", "192.0.2.7"], ["::"]])
@pytest.mark.parametrize("given", [settings(), settings(token=""), settings(read_token="read")])
def test_an_address_that_others_reach_needs_a_token(bound: list[str], given: Settings) -> None:
    with pytest.raises(SettingsError, match="HOMUNCULUS_WEB_TOKEN"):
        Access(given, bound)


def test_on_loopback_without_a_token_everything_is_open() -> None:
    access = Access(settings(), ["127.0.0.1"])
    access.check(request())
    access.check(request("POST", "/models/churn"))


@pytest.mark.parametrize("bound", [["127.0.0.1"], ["0.0.0.0"]])
@pytest.mark.parametrize(
    "path",
    ["/tables", "/models", "/overview", "/overview/watch", "/no/such/route", "/health", "/health/live/x", "/page/x.js"],
)
@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer ALL", "Basic all", "all", "Bearer all\0", "Bearer é"],
)
def test_once_there_is_a_token_nothing_is_answered_without_it(bound: list[str], path: str, authorization: str) -> None:
    access = Access(settings("all", "read"), bound)
    with pytest.raises(UnauthorizedError, match="Authorization: Bearer"):
        access.check(request(path=path, Authorization=authorization))


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/", "/page/main.js"])
def test_health_asks_for_no_token(path: str) -> None:
    Access(settings("all"), ["0.0.0.0"]).check(request(path=path, Host="anything"))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("token", ["all", "read"])
def test_both_tokens_read(method: str, token: str) -> None:
    Access(settings("all", "read"), ["0.0.0.0"]).check(request(method, Authorization=f"Bearer {token}"))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_the_full_token_writes(method: str) -> None:
    access = Access(settings("all", "read"), ["0.0.0.0"])
    access.check(request(method, Authorization="Bearer all"))
    with pytest.raises(ForbiddenError, match="may only read"):
        access.check(request(method, Authorization="Bearer read"))


def test_a_read_token_alone_closes_writing_altogether() -> None:
    access = Access(settings(read_token="read"), ["127.0.0.1"])
    access.check(request(Authorization="Bearer read"))
    with pytest.raises(ForbiddenError):
        access.check(request("POST", Authorization="Bearer read"))
    with pytest.raises(UnauthorizedError):
        access.check(request("POST", Authorization="Bearer \0"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6066", "127.0.0.1.evil.example:6066", ""])
def test_a_name_that_was_pointed_at_the_loopback_gets_nothing(host: str) -> None:
    with pytest.raises(ForbiddenError, match="loopback"):
        Access(settings(), ["127.0.0.1"]).check(request(Host=host))


@pytest.mark.parametrize("host", ["127.0.0.1:6066", "localhost:6066", "localhost", "[::1]:6066", "[::1]"])
def test_the_loopbacks_own_names_are_served(host: str) -> None:
    Access(settings(), ["127.0.0.1"]).check(request(Host=host))


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:8080", "null"])
def test_a_page_of_another_site_writes_nothing(origin: str) -> None:
    access = Access(settings(), ["127.0.0.1"])
    with pytest.raises(ForbiddenError, match="other sites"):
        access.check(request("POST", "/models/churn", Origin=origin))
    access.check(request("POST", "/models/churn", Origin="http://127.0.0.1:6066"))
