"""The broker, or a sentence that says why there is none: an operator's command never hangs."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka.errors import KafkaError

from core.errors import SettingsError
from core.settings import Settings
from engine.admission import admitted, unanswered
from engine.connection import Connection, client_options, connect
from engine.embedded import HOST, PORT, Answer, answer_at

REACH_S: Final = 10.0
"""Seconds that a broker may take to answer."""


def address(settings: Settings) -> str:
    """The broker's URL."""
    return f"kafka://{HOST}:{PORT}" if settings.embedded else settings.broker


async def reach(settings: Settings) -> Connection:
    """A connection to the broker. Raises SettingsError when none answers in time, which says what to do."""
    if settings.embedded and await answer_at(HOST, PORT) is not Answer.BROKER:
        raise SettingsError(
            f"no embedded broker is running at {HOST}:{PORT}: it lives with a worker, so start one (faust -A app "
            "worker), or set HOMUNCULUS_BROKER=kafka://host:port"
        )
    url = address(settings)
    bootstrap, security = client_options(url, settings)
    try:
        async with asyncio.timeout(REACH_S):
            await admitted(bootstrap, security)
            return await connect(settings, url)
    except (KafkaError, OSError, TimeoutError) as error:
        why = unanswered(error, security)
        raise SettingsError(f"no broker answers at {bootstrap} ({why}): check HOMUNCULUS_BROKER") from error
