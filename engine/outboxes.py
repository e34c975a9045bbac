"""Where a partition's outputs wait: for its commit or for the broker alone, for its own number or for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiokafka import TopicPartition

from engine.early import EarlyOutbox
from engine.outputs import Builders, Elsewhere, Outbox
from engine.quota import MAX_STAGED

if TYPE_CHECKING:
    from engine.batch import Staged
    from engine.engine import Engine


class TakenOutputs(NamedTuple):
    """What a commit takes of a partition's outputs."""

    here: Builders
    elsewhere: list[Staged]
    targets: set[TopicPartition]
    """Of both."""
    early: list[tuple[EarlyOutbox, int]]
    """Where outputs don't wait for a commit, and how many have been staged there so far: all of them must have left
    before this one."""


class Outboxes:
    """Of one partition, from its opening until it closes or fails."""

    def __init__(self, partition: int, early: EarlyOutbox | None, early_elsewhere: EarlyOutbox | None) -> None:
        self._partition = partition
        self._early = early
        self._early_elsewhere = early_elsewhere
        """The whole worker's."""
        self._here: Outbox | None = None
        self._elsewhere = Elsewhere()

    @classmethod
    async def open(cls, engine: Engine, partition: int) -> Outboxes:
        """Without transactions nothing waits for a commit, else all but what early agents send. Raises FencedError,
        TaskError."""
        committer, early, early_elsewhere = engine.committer, None, None
        if engine.has_early or not engine.exactly_once:
            early = EarlyOutbox(await committer.early_producer(), committer.failed, engine.meters.sent)
            early_elsewhere = await committer.early_elsewhere()
        outboxes = cls(partition, early, early_elsewhere)
        if engine.exactly_once:
            outboxes._here = Outbox((await committer.producer()).new_builder)
        return outboxes

    def add(self, staged: Staged) -> None:
        """An output of the finished prefix."""
        if self._here is None:
            self.add_early(staged)
        else:
            (self._here if staged.partition == self._partition else self._elsewhere).add(staged)

    def add_early(self, staged: Staged) -> None:
        """One that doesn't wait for the commit of its event; the commit waits for it."""
        box = self._early if staged.partition == self._partition else self._early_elsewhere
        assert box is not None
        box.add(staged)

    @property
    def count(self) -> int:
        """Outputs that wait, but for those that leave at once for others' partitions."""
        return sum(box.count for box in (self._here, self._elsewhere, self._early) if box is not None)

    def room(self, share: int) -> bool:
        """Whether more may be staged. share: the bytes that this partition may have waiting."""
        boxes = (self._here, self._elsewhere, self._early, self._early_elsewhere)
        return all(box.count < MAX_STAGED and box.weight < share for box in boxes if box is not None)

    @property
    def targets(self) -> set[TopicPartition]:
        """Where what waits for a commit goes."""
        return {*(() if self._here is None else self._here.targets), *self._elsewhere.targets}

    def take(self) -> TakenOutputs:
        """All that is staged."""
        targets = self.targets
        return TakenOutputs(
            {} if self._here is None else self._here.take(),
            self._elsewhere.take(),
            targets,
            [(box, box.staged) for box in (self._early, self._early_elsewhere) if box is not None],
        )

    def close(self, reason: str) -> None:
        """Sends nothing more of this partition; who waits for it is told."""
        if self._early is not None:
            self._early.close(reason)
