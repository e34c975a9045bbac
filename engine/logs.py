"""Logging as the settings say: readable lines, or one JSON object a line; each says what it is about."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from structlog.typing import EventDict

from core.settings import Settings
from engine.batch import told_of_work
from engine.outage import Outage

OURS: Final = ("agents", "cli", "core", "engine", "models", "tables", "web")
QUIET: Final = ("aiokafka", "asyncio", "faust", "mode", "aiohttp", "kafka")
"""Libraries that tell more than an operator wants; aiokafka at DEBUG alone takes a fifth of the CPU."""
ABOUT: Final = ("source", "session", "trace_id", "request_id", "user_id")
"""What a line may say of the record that it is about: Slice.about() gives it."""
REPEAT_S: Final = 10.0
"""Seconds in which a library's line of code is heard once."""
PASSING: Final = ("NotLeaderForPartitionError", "NotCoordinator", "CoordinatorNotAvailable", "coordinator dead")
"""What aiokafka calls an error and tries again: every new topic and every new group goes through it."""


class WithoutPassing(logging.Filter):
    """Leaves out what a library has already dealt with, and what it has said a moment ago."""

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


def told(logger: Any, method: str, event: EventDict) -> EventDict:
    """A line's fields in the order in which people read them: time, level, logger, message; then what the line says of
    the work that it comes out of (source, session, trace_id, ...), and what else it was given."""
    record: logging.LogRecord = event.pop("_record")
    event.pop("_from_structlog")
    extras = {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC),
        "level": record.levelname,
        "logger": record.name,
        "message": event.pop("event"),
        **(extras or told_of_work()),
    }
    line.update((name, value) for name, value in event.items() if name not in line)
    return line


def as_json(logger: Any, method: str, event: EventDict) -> str:
    """One JSON object."""
    event["time"] = event["time"].isoformat(timespec="milliseconds")
    event["level"] = event["level"].lower()
    return json.dumps(event, ensure_ascii=False, default=str)


def for_people(logger: Any, method: str, event: EventDict) -> str:
    """Local time, level, message, then the other fields; an exception on lines of its own."""
    event.pop("logger")
    time, level, message, exception = (event.pop(name, None) for name in ("time", "level", "message", "exception"))
    line = f"{time.astimezone():%H:%M:%S} {level:<8} {message}"
    if event:
        line += "  " + " ".join(f"{name}={_shown(value)}" for name, value in event.items())
    return f"{line}\n{exception}" if exception else line


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if any(c.isspace() or not c.isprintable() for c in text) or not text else text


def config(settings: Settings, outage: Outage) -> dict[str, Any]:
    """For logging.config.dictConfig. Loggers of structlog lead there too. outage: tells of it in place of others."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    render = {"console": for_people, "json": as_json}[settings.log_format]
    level = settings.log_level.upper()
    quiet = "INFO" if level == "DEBUG" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [told, structlog.processors.format_exc_info, render],
            },
        },
        "filters": {"outage": {"()": lambda: outage}, "passing": {"()": WithoutPassing}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "lines", "filters": ["outage", "passing"]}
        },
        "root": {"level": level, "handlers": ["stderr"]},
        # Faust sets the root's level from its own command line, whose default is WARN.
        "loggers": {**{name: {"level": level} for name in OURS}, **{name: {"level": quiet} for name in QUIET}},
    }
