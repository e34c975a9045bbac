"""What a running worker's web views say: values are where their partition's owner is, and any worker finds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from cli.report import Report
from core.errors import SettingsError
from core.settings import Settings

ANSWER_S: Final = 10.0
UNAUTHORIZED: Final = 401


async def value(settings: Settings, worker: str | None, table: str, key: str, session: str | None) -> Report:
    """GET /tables/TABLE/KEY. Raises SettingsError when no worker answers, or it wants another token."""
    path = "/".join(
        ("tables", quote(table, safe="", errors="surrogateescape"), quote(key, safe="", errors="surrogateescape"))
    )  # a key may have slashes of its own
    status, document = await get(settings, worker, path, {"session": session} if session else {})
    found = status == 200
    lines = json.dumps(document, ensure_ascii=False, indent=2).splitlines() if found else [str(document["message"])]
    return Report(document, lines, ok=found)


async def get(settings: Settings, worker: str | None, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
    """Status and document of a worker's view. path: percent-encoded. Raises SettingsError when no worker answers, or it
    wants another token."""
    base = URL(worker) if worker else URL.build(scheme="http", host=str(settings.web_bind), port=settings.web_port)
    url = base.join(URL(path, encoded=True)).update_query(query or None)
    token = settings.web_read_token or settings.web_token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_S), headers=headers) as client,
            client.get(url, allow_redirects=False) as answer,
        ):
            status, document = answer.status, await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise SettingsError(
            f"no worker answers at {base} ({str(error) or type(error).__name__}): start one, or give the address of "
            "one with --worker http://HOST:PORT"
        ) from error
    if status == UNAUTHORIZED:
        raise SettingsError(f"the worker at {base} wants another token: HOMUNCULUS_WEB_READ_TOKEN or _WEB_TOKEN")
    return status, document
