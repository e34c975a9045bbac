"""Outputs that belong to no commit: what is compared, not answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.outputs import Builders, Outbox

if TYPE_CHECKING:
    from engine.batch import Staged
    from engine.committer import Committer


class Aside:
    """Sends at once, beside all commits: a crash may lose some, and what is done again sends them again."""

    def __init__(self, committer: Committer, sent: Callable[[Builders], None]) -> None:
        """sent: told what the broker took."""
        self._committer = committer
        self._tell = sent

    async def send(self, outputs: Iterable[Staged]) -> None:
        """Returns once the broker has them. Raises FencedError, TaskError: they are lost."""
        producer = await self._committer.early_producer()
        outbox = Outbox(producer.new_builder)
        for staged in outputs:
            outbox.add(staged)
        taken = outbox.take()
        await producer.send(taken)
        self._tell(taken)
