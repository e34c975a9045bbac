"""What a doctor looks at, one thing a function: each says what it saw, or raises what is wrong and what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path
from typing import Final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    TransactionalIdAuthorizationFailed,
)

from cli import shapes
from cli.reach import reach
from cli.reset import partition_folders, refuse_if_used
from cli.shapes import compare
from core.errors import DataFolderError, HomunculusError, ModelError, SettingsError, TopicError
from core.settings import Guarantee
from engine import broker_clock, rights
from engine.app import App
from engine.connection import Connection
from engine.embedded import HOST, PORT, Answer, answer_at, find_binary
from models.device import Device
from models.engines import load
from models.inference import InferenceThread

ROOM: Final = 1 << 30
"""Bytes below which a disk is called full: checkpoints, compactions and a replay need room at once."""
APART_S: Final = 1.0
"""Seconds that two clocks may differ by; machines that are told the time are milliseconds apart."""


class FaultError(HomunculusError):
    """What a check finds wrong that a worker doesn't look at."""


class SoonError(HomunculusError):
    """Nothing is wrong yet, but will be unless something is done."""


async def broker(app: App) -> tuple[str, Connection | None]:
    """Whether a broker answers. With the embedded one none has to: a worker brings it."""
    if app.settings.embedded and await answer_at(HOST, PORT) is Answer.NOBODY:
        return f"embedded; none is running, the worker starts {find_binary()}", None
    connection = await reach(app.settings)
    return f"answers at {connection.bootstrap}", connection


async def transactions(app: App, connection: Connection) -> str:
    """Whether the guarantee that is asked for can be kept."""
    if connection.guarantee is app.settings.guarantee:
        return connection.guarantee.value
    if app.settings.embedded:
        return f"{connection.guarantee.value}: the embedded broker has no transactions"
    raise SettingsError(
        f"HOMUNCULUS_GUARANTEE is {Guarantee.EXACTLY_ONCE.value}, but this broker has no transactions: "
        "workers would run at_least_once"
    )


async def may(app: App, connection: Connection) -> str:
    """Whether the broker lets workers do what they must."""
    await rights.check(connection, app.needed_rights(connection, shapes.topics(app).values()))
    return "a worker may do all that it must" if connection.idempotent else "this broker knows none"


async def topics(app: App, connection: Connection) -> str:
    """Whether the topics have the shape that workers need."""
    found = await compare(app, connection)
    if wrong := [f"{one.name}: {one.problem}" for one in found if one.problem]:
        raise TopicError("; ".join(wrong))
    missing = sum(not one.there for one in found)
    return f"{len(found) - missing} as they must be, {missing} to be created by the first worker"


async def clock(app: App, connection: Connection) -> str:
    """Whether this machine's clock agrees with the broker's."""
    if app.settings.embedded:
        return "the embedded broker goes by this machine's"
    if not connection.idempotent:
        return "not compared: a broker without transactions tells its time nowhere"
    try:
        found = await broker_clock.difference(connection)
    except (IncompatibleBrokerVersion, NotImplementedError):
        return "not compared: the broker is older than Kafka 3.0, and tells its time nowhere"
    except (TransactionalIdAuthorizationFailed, GroupAuthorizationFailedError):
        app_id = app.settings.app_id
        return f"not compared: that takes WRITE on the transactional id {app_id}-clock and READ on the group {app_id}"
    except TimeoutError:
        return "not compared: the broker did not answer in time"
    return agree(found)


def agree(found: broker_clock.Difference) -> str:
    """Raises FaultError for clocks that are certainly too far apart."""
    if found.least <= APART_S and found.most >= -APART_S:
        most = max(abs(found.least), abs(found.most))
        return f"at most {1e3 * most:,.0f} ms from that of the broker at {found.broker}"
    behind = found.least > 0
    does = (
        "events that are on time look as if they were still to come: they don't move the watermark, so that windows, "
        "event-time timers and SESSION_TTL stand still (those a day ahead become dead letters), and a new certificate "
        "isn't valid yet"
        if behind
        else "events with a time still to come are believed, and make those that are on time late; timers by the clock "
        "ring early, and certificates run out early"
    )
    apart, side = abs(found.least + found.most) / 2, "behind" if behind else "ahead of"
    raise FaultError(
        f"this machine's clock is {apart:,.1f} s {side} that of the broker at {found.broker}: {does}. Set the one that "
        "is wrong, and keep it right (chrony, systemd-timesyncd)"
    )


async def store(app: App) -> str:
    """Whether every version in the store could go live here, in each of its precisions: hashes, signature, golden
    examples."""
    models, device, thread = app.engine.models.store, Device.of(app.settings.device), InferenceThread()
    good, bad = [], []
    for name in await asyncio.to_thread(models.models):
        for version in await asyncio.to_thread(models.versions, name):
            try:
                folder = await asyncio.to_thread(models.fetch, name, version)
                for precision in folder.manifest.offered:
                    (await asyncio.to_thread(load, folder, device, thread, precision=precision)).close()
                good.append(f"{name}@{version}")
            except ModelError as error:
                bad.append(str(error))
    if bad:
        raise ModelError("; ".join(bad))
    return f"{', '.join(good)}: hashes, signature and golden examples hold" if good else f"{models.url} is empty"


async def device(app: App) -> str:
    """What models will run on."""
    settings = app.settings
    found = Device.of(settings.device, memory=settings.gpu_memory)
    names = [provider if isinstance(provider, str) else provider[0] for provider in found.providers]
    limit = found.memory.limit
    held = "" if limit is None else f"; versions may hold {limit / 1e6:,.0f} MB of it"
    if settings.gpu_memory is not None and limit is None:
        held = "; HOMUNCULUS_GPU_MEMORY is a GPU's, and means nothing here"
    return f"{settings.device}: {', '.join(names)}{held}"


async def data_folder(app: App) -> str:
    """Whether checkpoints can be written, and nobody else writes them."""
    folder = app.engine.application_folder
    stores = partition_folders(folder)
    for one in stores:
        refuse_if_used(one)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        raise DataFolderError(f"{there} can't be written: check HOMUNCULUS_DATA_DIR and its owner")
    if (free := shutil.disk_usage(there).free) < ROOM:
        raise DataFolderError(f"{there} has only {free / 1e6:.0f} MB left: free at least {ROOM / 1e6:.0f} MB")
    return f"{Path(folder)}: {len(stores)} partitions, {free / 1e9:.1f} GB free"


async def web(app: App) -> str:
    """Whether the web views may be bound as configured, and their port is free."""
    settings = app.settings
    address = str(settings.web_bind)
    if not settings.web_bind.is_loopback and settings.web_token is None:
        raise SettingsError(f"HOMUNCULUS_WEB_BIND is {address}, which others reach: set HOMUNCULUS_WEB_TOKEN")
    family = socket.AF_INET6 if settings.web_bind.version == 6 else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, settings.web_port))
        except OSError as error:
            raise SettingsError(
                f"{address} port {settings.web_port} can't be bound ({error.strerror}): a worker may be running, or "
                "choose another HOMUNCULUS_WEB_PORT"
            ) from error
    token = "with a token" if settings.web_token else "without a token"
    return f"{address} port {settings.web_port} is free, {token}"


FAULTS: Final = (HomunculusError, OSError)
"""What a check raises when it finds a fault."""
