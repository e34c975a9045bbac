"""What every command of ours has: --json before or after its name, errors as a sentence, a true exit status."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
import sys
from abc import abstractmethod
from typing import Any, ClassVar, NoReturn, cast

import click
import faust.cli.faust as fausts  # Faust's own commands first, so that ours replace them and never the reverse
from aiokafka.errors import KafkaError
from faust.cli.base import AppCommand, cli, option

from cli.reach import address
from cli.report import Report
from core.errors import HomunculusError, UsageError
from engine.admission import REFUSED, in_words
from engine.app import App
from engine.exit import leave

FAULT = 1
"""Exit status of a command that failed, or found a fault."""

JSON = option("--json", "as_json", is_flag=True, default=False, show_default=False, help="Print one JSON document.")


def offering(*more: Any) -> list[Any]:
    """The options of a command: --json, and its own."""
    return [JSON, *more]


class OperatorCommand(AppCommand):
    """A command that makes one Report."""

    abstract: ClassVar[bool] = True
    options = offering()

    @abstractmethod
    async def answer(self, **options: Any) -> Report:
        """Does what the command is for. Raises HomunculusError or KafkaError with what to do about it."""

    @property
    def ours(self) -> App:
        """The application, as what it is."""
        return cast(App, self.app)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Prints the report, and exits with 0 if all is well."""
        options = {**self.kwargs, **kwargs}
        self.json = bool(options.pop("as_json", False)) or self.json
        logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(message)s")
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say is in our error
        for stream in (sys.stdout, sys.stderr):
            cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")  # a file's name may be no text
        try:
            report = asyncio.run(self._interruptible(options))
        except (HomunculusError, KafkaError, OSError, TimeoutError, asyncio.CancelledError) as error:
            report = Report({"error": type(error).__name__, "message": self._in_words(error)}, ok=False)
            print(f"{self.prog_name}: {report.document['message']}", file=sys.stderr)
        if self.json:
            print(json.dumps(report.document, ensure_ascii=False, indent=2))
        else:
            for line in report.lines:
                print(line)
        leave(0 if report.ok else FAULT)

    def agreed(self, question: str, yes: bool) -> bool:
        """Whether the operator wants it. Raises UsageError where nobody can be asked."""
        if yes:
            return True
        if self.json:
            raise UsageError(f"{self.ctx.info_name} --json changes something only with --yes: nothing was changed")
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's would wait for the answer
        try:
            return click.confirm(question, err=True)
        except click.Abort:
            raise UsageError("the question was not answered (--yes doesn't ask): nothing was changed") from None
        finally:
            signal.signal(signal.SIGINT, ours)

    async def _interruptible(self, options: dict[str, Any]) -> Report:
        """What a SIGTERM interrupts is tidied up, as after a Ctrl-C."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await self.answer(**options)

    def _in_words(self, error: BaseException) -> str:
        if isinstance(error, asyncio.CancelledError):
            return "interrupted by SIGTERM"
        if isinstance(error, REFUSED):
            return in_words(error)
        if isinstance(error, (KafkaError, TimeoutError)):
            return (
                f"the broker at {address(self.ours.settings)} did not answer as it should: {str(error) or repr(error)}"
            )
        return str(error) or type(error).__name__


def without(*names: str) -> None:
    """Takes commands of Faust's away that know only Faust's tables and models."""
    assert fausts.cli is cli
    for name in names:
        cli.commands.pop(name, None)
