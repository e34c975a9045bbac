"""Logging as the settings say: readable lines, or one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from core.settings import Settings

OURS: Final = ("agents", "cli", "core", "engine", "models", "tables", "web")
QUIET: Final = ("aiokafka", "asyncio", "faust", "mode", "aiohttp", "kafka")
"""Libraries that tell more than an operator wants; aiokafka at DEBUG alone takes a fifth of the CPU."""
REPEAT_S: Final = 10.0
"""Seconds in which a library's line of code is heard once."""
PASSING: Final = ("NotLeaderForPartitionError", "NotCoordinator", "CoordinatorNotAvailable", "coordinator dead")
"""What aiokafka calls an error and tries again: every new topic and every new group goes through it."""


class WithoutPassing(logging.Filter):
    """Leaves out what a library has already dealt with, and what it has said a moment ago: with the broker away
    aiokafka has thousands of lines a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False for lines that only worry, or repeat."""
        if not record.name.startswith(("aiokafka", "asyncio")):
            return True
        text = record.getMessage()
        if any(part in text for part in PASSING):
            return False
        kind = f"{record.name}:{record.lineno}"
        again = record.created - self._said.get(kind, 0.0) < REPEAT_S
        if not again:
            self._said[kind] = record.created
        return not again


class JsonFormatter(logging.Formatter):
    """time, level, logger, message and, where there is one, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def config(settings: Settings) -> dict[str, Any]:
    """For logging.config.dictConfig."""
    level = settings.log_level.upper()
    quiet = "INFO" if level == "DEBUG" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "console": {"format": "%(asctime)s %(levelname)-8s %(message)s", "datefmt": "%H:%M:%S"},
            "json": {"()": JsonFormatter},
        },
        "filters": {"passing": {"()": WithoutPassing}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": settings.log_format, "filters": ["passing"]}
        },
        "root": {"level": level, "handlers": ["stderr"]},
        # Faust sets the root's level from its own command line, whose default is WARN.
        "loggers": {**{name: {"level": level} for name in OURS}, **{name: {"level": quiet} for name in QUIET}},
    }
