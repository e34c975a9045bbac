"""What a doctor looks at, one thing a function: each says what it saw, or raises what is wrong and what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path
from typing import Final

from cli import shapes
from cli.reach import reach
from cli.reset import partition_folders, refuse_if_used
from cli.shapes import compare
from core.errors import DataFolderError, HomunculusError, ModelError, SettingsError, TopicError
from core.settings import Guarantee
from engine import rights
from engine.app import App
from engine.connection import Connection
from engine.embedded import HOST, PORT, Answer, answer_at, find_binary
from models.device import Device
from models.inference import InferenceThread
from models.runtime import Runtime

ROOM: Final = 1 << 30
"""Bytes below which a disk is called full: checkpoints, compactions and a replay need room at once."""


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


async def store(app: App) -> str:
    """Whether every version in the store could go live here: hashes, signature, golden examples."""
    models, device, thread = app.engine.models.store, Device.of(app.settings.device), InferenceThread()
    good, bad = [], []
    for name in await asyncio.to_thread(models.models):
        for version in await asyncio.to_thread(models.versions, name):
            try:
                folder = await asyncio.to_thread(models.fetch, name, version)
                (await Runtime.load(folder, device, thread)).close()
                good.append(f"{name}@{version}")
            except ModelError as error:
                bad.append(str(error))
    if bad:
        raise ModelError("; ".join(bad))
    return f"{', '.join(good)}: hashes, signature and golden examples hold" if good else f"{models.url} is empty"


async def device(app: App) -> str:
    """What models will run on."""
    found = Device.of(app.settings.device)
    names = [provider if isinstance(provider, str) else provider[0] for provider in found.providers]
    return f"{app.settings.device}: {', '.join(names)}"


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
