"""The sides of a comparison: how each one's worker is started on a run's topics."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from benchmarks import model
from benchmarks.lab import ROOT, Lab, Run
from benchmarks.load import Publisher
from benchmarks.worker import Worker
from core.settings import Guarantee
from core.topics import CONTROL

OURS_COMMIT_S: Final = 0.1
"""What the comparison with stock Faust runs at; the product's default is shorter."""


@dataclass(frozen=True, slots=True)
class Side:
    """Someone who does the job."""

    name: str
    start: Callable[[Lab, Run], Worker]
    """Makes its worker, not yet started."""
    events: int
    """How many events of the load it gets; a slow side gets fewer, the first of the same ones."""
    settings: Mapping[str, Any]
    """What to print of how it runs."""


def deploy(lab: Lab, run: Run) -> None:
    """Puts the model into the store and asks for it on the control topic, as an operator does."""
    lab.build_model()
    request = model.NAME.encode(), msgspec.json.encode({"active": model.VERSION})
    Publisher(lab.bootstrap).publish(run.topic(CONTROL.name), [request])


def ours(
    lab: Lab,
    run: Run,
    *,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    commit_interval: float = OURS_COMMIT_S,
    **environment: str,
) -> Worker:
    """A worker of this project, on a run where the model is deployed; more HOMUNCULUS_* without the prefix."""
    settings = {
        "BROKER": f"kafka://{lab.bootstrap}",
        "APP_ID": f"{run.prefix}app",
        "TOPIC_PREFIX": run.prefix,
        "PARTITIONS": str(lab.partitions),
        "DATA_DIR": str(run.folder / "data"),
        "MODEL_STORE": str(lab.store),
        "DEVICE": "cpu",
        "WEB_PORT": str(free_port()),
        "GUARANTEE": guarantee.value,
        "COMMIT_INTERVAL": str(commit_interval),
        **environment,
    }
    command = [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"]
    return Worker(command, {f"HOMUNCULUS_{k}": v for k, v in settings.items()}, run.folder / "worker.log", ROOT)


def stock(lab: Lab, run: Run, *, tuned: bool) -> Worker:
    """A worker of benchmarks/stock_faust.py: Faust's defaults, or the settings that proved fastest."""
    environment = {
        "BENCH_BOOTSTRAP": lab.bootstrap,
        "BENCH_PREFIX": run.prefix,
        "BENCH_TUNED": "1" if tuned else "0",
        "BENCH_PARTITIONS": str(lab.partitions),
        "BENCH_MODEL": str(lab.build_model()),
        "BENCH_DATA_DIR": str(run.folder / "data"),
        "BENCH_WEB_PORT": str(free_port()),
    }
    loop = ["--loop", "uvloop"] if tuned else []
    command = [sys.executable, "-m", "faust", "-A", "benchmarks.stock_faust", *loop, "worker", "-l", "info"]
    return Worker(command, environment, run.folder / "worker.log", ROOT)


def _deployed(lab: Lab, run: Run) -> Worker:
    deploy(lab, run)
    return ours(lab, run)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


DEFAULTS: Final = Side(
    "stock Faust, defaults", lambda lab, run: stock(lab, run, tuned=False), 20_000, {"guarantee": "at_least_once"}
)
TUNED: Final = Side(
    "stock Faust, best settings",
    lambda lab, run: stock(lab, run, tuned=True),
    20_000,
    {"guarantee": "at_least_once", "settings": "BEST in benchmarks/stock_faust.py, uvloop, msgspec as JSON codec"},
)
OURS: Final = Side(
    "homunculus", _deployed, 200_000, {"guarantee": Guarantee.EXACTLY_ONCE.value, "commit_interval_s": OURS_COMMIT_S}
)
