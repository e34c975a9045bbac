"""What every benchmark stands on: a broker, a folder, topics that go away again, and the conditions to print."""

from __future__ import annotations

import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import model
from benchmarks.host import Steal
from core.topics import ALL
from models.manifest import MODEL

ROOT: Final = Path(__file__).parent.parent
ADMIN_S: Final = 30.0
MEASURED: Final = ("faust-streaming", "aiokafka", "onnxruntime", "numpy", "msgspec", "rocksdict", "uvloop")
MAX_RECORD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's own set of topics, and its folder."""

    prefix: str
    folder: Path

    def topic(self, name: str) -> str:
        """A topic of the contract, as this run has it."""
        return self.prefix + name


@dataclass(frozen=True, slots=True)
class Lab:
    """The place where measuring happens."""

    bootstrap: str
    """host:port of an Apache Kafka."""
    folder: Path
    """For stores, data folders and logs; removed by whoever made it."""
    partitions: int = 8
    steal: Steal = field(default_factory=Steal)

    @property
    def store(self) -> Path:
        """The model store that holds the model of all sides."""
        return self.folder / "store"

    def build_model(self) -> Path:
        """Makes the model unless an earlier benchmark has. Returns its ONNX file."""
        path = self.store / model.NAME / model.VERSION / MODEL
        return path if path.exists() else model.build(self.store)

    @contextmanager
    def run(self, name: str) -> Iterator[Run]:
        """A fresh set of the contract's topics under their own prefix. All that carries it is deleted afterwards."""
        prefix = f"bench-{uuid.uuid4().hex[:8]}-{name}-"
        folder = self.folder / prefix.strip("-")
        folder.mkdir()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        specs = [NewTopic(prefix + spec.name, self.partitions, 1, config=spec.config(MAX_RECORD)) for spec in ALL]
        for created in admin.create_topics(specs, request_timeout=ADMIN_S).values():
            created.result(ADMIN_S)
        try:
            yield Run(prefix, folder)
        finally:
            left = [topic for topic in admin.list_topics(timeout=ADMIN_S).topics if topic.startswith(prefix)]
            for deleted in admin.delete_topics(left, request_timeout=ADMIN_S).values():
                _unless_gone(deleted)
            shutil.rmtree(folder / "data", ignore_errors=True)

    def conditions(self, **more: Any) -> dict[str, Any]:
        """What a reader must know to repeat a figure; a load average above 2 or so is other people's work."""
        return {
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "on_these_cores": "worker, broker, generator and reader",
            "load_average": os.getloadavg()[0],
            "broker": f"Apache Kafka {os.environ.get('KAFKA_VERSION', '')} at {self.bootstrap}".replace("  ", " "),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in MEASURED},
            "partitions": self.partitions,
            **more,
        }


def _unless_gone(deleted: Any) -> None:
    try:
        deleted.result(ADMIN_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
