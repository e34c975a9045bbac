"""alerts -> a webhook: each alert is posted once it is committed, signed, until the other side has it.

The form is that of Standard Webhooks (https://github.com/standard-webhooks/standard-webhooks, spec of 2023): headers
webhook-id, webhook-timestamp and webhook-signature, so that receivers can check them with that project's libraries.
Read by a group of its own, apart from the partitions' tasks: alerts that nobody takes wait in Kafka, and hold up
nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import aiohttp
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from core.events import Alert
from core.topics import ALERTS
from engine.admission import REFUSED, in_words
from engine.app import App
from engine.codec import codec_of
from engine.engine import Engine

log = logging.getLogger(__name__)

AT_ONCE: Final = 20
"""Alerts of one read; those of one partition follow each other, the partitions go on side by side."""
ANSWER_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
TRIED_S: Final = 3 * 24 * 3600.0
"""How long after it was written an alert is tried again. An older one is tried once: a receiver that chokes on one
alert holds up those behind it for that long, not for ever."""
AGAIN: Final = frozenset({408, 425, 429})
"""Refusals that say `later`; with them, all answers from 500 on."""
_decode = codec_of(Alert).decode


async def follow(app: App) -> None:
    """Posts every alert to HOMUNCULUS_ALERT_WEBHOOK, those from now on where it was never set before; for as long as
    the worker runs."""
    settings = app.engine.settings
    if settings.alert_webhook is None:
        await asyncio.Event().wait()
    secret = settings.alert_secret
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        webhook = Webhook(session, str(settings.alert_webhook), None if secret is None else secret.get_secret_value())
        while True:
            try:
                await _read(app.engine, webhook)
            except REFUSED as error:
                log.error("No alert is posted to the webhook: %s", in_words(error))
                await asyncio.Event().wait()
            except (KafkaError, OSError) as error:
                log.warning("Alerts for the webhook can't be read now: %r", error)
                await asyncio.sleep(LONGEST_PAUSE_S)


async def _read(engine: Engine, webhook: Webhook) -> None:
    connection, settings = engine.connection, engine.settings
    consumer = AIOKafkaConsumer(
        engine.topic_name(ALERTS),
        **connection.options,
        group_id=f"{settings.app_id}-webhook",
        isolation_level=connection.isolation,
        auto_offset_reset="latest",
        enable_auto_commit=False,
        max_poll_interval_ms=24 * 3600 * 1000,  # the other side may be away for long
    )
    async with consumer:
        begun: set[TopicPartition] = set()
        while True:
            if new := consumer.assignment() - begun:
                await _begin(consumer, new)
                begun |= new
            read = await consumer.getmany(timeout_ms=500, max_records=AT_ONCE)
            if read:
                await asyncio.gather(*(webhook.post_all(records) for records in read.values()))
                await consumer.commit({tp: records[-1].offset + 1 for tp, records in read.items()})


async def _begin(consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]) -> None:
    """Where nothing was ever posted of a partition, notes its end: what comes while no worker runs is posted too."""
    for tp in partitions:
        if await consumer.committed(tp) is None:
            await consumer.commit({tp: await consumer.position(tp)})


class Webhook:
    """The other side."""

    def __init__(self, session: aiohttp.ClientSession, url: str, secret: str | None) -> None:
        self._session = session
        self._url = url
        self._key = None if secret is None else key_of(secret)
        self._away = False

    async def post_all(self, records: Sequence[Any]) -> None:
        """One after the other; what is no alert, or is refused for good, is left out with a line in the log."""
        for record in records:
            try:
                alert = _decode(record.value)
            except (ValueError, TypeError, RecursionError):
                log.warning("%s/%d/%d is no alert, and isn't posted", record.topic, record.partition, record.offset)
            else:
                await self.post(alert.id, record.value, record.timestamp / 1e3)

    async def post(self, id_: str, body: bytes, written: float) -> None:
        """Returns once it is there, refused for good, or too old to be tried again. written: seconds since epoch."""
        pause = FIRST_PAUSE_S
        while (why := await self._try(id_, body)) is not None:
            if time.time() - written > TRIED_S:
                log.error("The webhook does not take %s (%s): it is too old to be posted again", id_, why)
                return
            if not self._away:
                self._away = True
                log.warning("The webhook takes no alerts now (%s): they wait", why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        if self._away:
            self._away = False
            log.info("The webhook takes alerts again")

    async def _try(self, id_: str, body: bytes) -> str | None:
        """Why it has to be tried again; None: there is nothing more to do."""
        headers = {"Content-Type": "application/json", **signed(id_, body, self._key, int(time.time()))}
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status in AGAIN or answer.status >= 500:
                    return f"it answers with status {answer.status}"
                if not 200 <= answer.status < 300:
                    log.error("The webhook refuses %s with status %d: it is not posted again", id_, answer.status)
                return None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"it does not answer: {type(error).__name__}"


def signed(id_: str, body: bytes, key: bytes | None, now: int) -> dict[str, str]:
    """The headers of one attempt: the same webhook-id whenever an alert is posted. now: seconds since epoch."""
    name = hashlib.sha256(id_.encode()).hexdigest()[:32]
    headers = {"webhook-id": name, "webhook-timestamp": str(now)}
    return headers if key is None else headers | {"webhook-signature": signature(name, body, key, now)}


def signature(name: str, body: bytes, key: bytes, now: int) -> str:
    """Of one attempt. name: its webhook-id."""
    digest = hmac.new(key, f"{name}.{now}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def key_of(secret: str) -> bytes:
    """whsec_BASE64, as Standard Webhooks writes it, or any other text as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
