"""What every demo's command has: its options, and an end in order however it ends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop
from aiokafka.errors import KafkaError

from core.errors import HomunculusError
from core.settings import EMBEDDED

WEB_PORT: Final = 6066
INTERRUPTED: Final = 130


def options_of(demo: str, description: str) -> argparse.ArgumentParser:
    """Those that all have."""
    parser = argparse.ArgumentParser(prog=f"scripts/demo {demo}", description=description)
    parser.add_argument("--keep", action="store_true", help="leave the worker running until Ctrl-C")
    parser.add_argument(
        "--broker", default=EMBEDDED, metavar="URL", help="kafka://host:port instead of the embedded one"
    )
    parser.add_argument(
        "--web-port", type=int, metavar="PORT", help=f"default: {WEB_PORT}, or the next one that is free"
    )
    return parser


def status_of(demo: Callable[[], int]) -> int:
    """Runs a demo. Returns the command's exit status; what the demo can't go on with is told in words."""
    try:
        return demo()
    except (HomunculusError, KafkaError) as error:
        sys.stdout.flush()
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def run(work: Coroutine[Any, Any, int], folder: Path) -> int:
    """The exit status of work. Ctrl-C, SIGTERM and a closed terminal end it in order. folder: for a log."""
    # What aiokafka tells of lost connections; what comes of them is said by errors of ours.
    logging.basicConfig(filename=folder / "demo.log", level=logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_guarded(work))


async def _guarded(work: Coroutine[Any, Any, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # this is a coroutine
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        return INTERRUPTED
