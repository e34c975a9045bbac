"""What the demo shows: its steps, the replay as it goes, and the summary. On anything but a terminal, plain lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from examples.purchases.customers import Customer
from examples.purchases.ledger import Progress

EVERY_S: Final = 0.2
EVERY_PLAIN_S: Final = 2.0
WIDTH: Final = 110
"""Of plain lines: a log has no width of its own."""


class Step:
    """One step of the demo, and what there is to say of it once it is done."""

    def __init__(self) -> None:
        self.result = ""


class Screen:
    """Writes to standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=WIDTH)

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print(f"[bold]{text}[/bold]\n")

    def line(self, text: str = "") -> None:
        """A line as it is."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Shows that it goes on, then its result and how long it took."""
        step, start = Step(), time.monotonic()
        if self._console.is_terminal:
            with self._console.status(name):
                yield step
        else:
            yield step
        self._console.print(f"{name:<10} {step.result:<84} {time.monotonic() - start:6.1f} s", markup=False)

    async def follow(self, progress: Callable[[], Progress]) -> None:
        """Shows the replay until it is cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(EVERY_PLAIN_S)
                self.line(_plain(progress()))
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(_panel(progress()), refresh=True)
                await asyncio.sleep(EVERY_S)

    def summary(self, lines: Iterable[tuple[str, str]]) -> None:
        """Names and what there is to say of them."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in lines:
            table.add_row(name, text)
        self._console.print()
        self._console.print(table)

    def customers(self, customers: Sequence[Customer]) -> None:
        """Their state, and what the model expects of them."""
        table = Table(
            title="Customers whose 60 days aren't over, as the worker knows them",
            title_justify="left",
            box=None,
            padding=(0, 2),
        )
        table.add_column("customer")
        for name in ("purchases", "dollars", "first", "last", "buys again", "says version"):
            table.add_column(name, justify="right")
        for each in customers:
            table.add_row(
                each.session,
                str(each.purchases),
                f"{each.dollars:,.2f}",
                each.first[:10],
                each.last[:10],
                f"{each.returns:.0%}",
                each.version,
            )
        self._console.print()
        self._console.print(table)

    def verdict(self, claims: Iterable[tuple[bool, str]]) -> None:
        """What was promised, and whether it happened."""
        self._console.print()
        for held, claim in claims:
            mark = "[green]yes[/green]" if held else "[bold red]NO [/bold red]"
            self._console.print(f"{mark}  {claim}")


def _plain(p: Progress) -> str:
    return (
        f"{p.answered:>7,} of {p.of:,} events  {p.rate:>7,.0f}/s  p50 {p.p50_ms:.0f} ms  p99 {p.p99_ms:.0f} ms  "
        f"{p.sessions:,} sessions  {p.alerts} alerts  version {p.version}"
    )


def _panel(p: Progress) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for _ in range(7):
        table.add_column(justify="right")
    table.add_row("events", "per second", "p50", "p99", "sessions", "alerts", "version", style="dim")
    table.add_row(
        f"{p.answered:,}",
        f"{p.rate:,.0f}",
        f"{p.p50_ms:.0f} ms",
        f"{p.p99_ms:.0f} ms",
        f"{p.sessions:,}",
        str(p.alerts),
        p.version,
        style="bold",
    )
    return Group(ProgressBar(total=p.of, completed=p.answered, width=72), table)
