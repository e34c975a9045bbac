"""Waiting that ends: for clients of a broker that may be gone, and that don't always end when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of work. Raises TimeoutError when it takes longer: it is cancelled then, and not waited for."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_forget)
    if not task.done() or task.cancelled():
        raise TimeoutError
    return task.result()


def _forget(task: asyncio.Future[Any]) -> None:
    """Takes the outcome that nobody waits for any more, or asyncio would complain about it."""
    if not task.cancelled():
        task.exception()
