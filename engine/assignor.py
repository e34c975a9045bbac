"""Who gets which partition: numbers are dealt, not topics, so that partition p of every topic has one owner, and the
same number of copies on other workers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor

Numbers = Mapping[str, set[int]]
"""Member -> partition numbers."""


def deal(numbers: range, held: Numbers, copied: Numbers = MappingProxyType({})) -> dict[str, set[int]]:
    """Partition numbers to members: sizes differ by one at most, and whoever held one keeps it if that allows.

    held: the numbers that each member had; where two claim one (a member that comes back after a silence), the first
    by name keeps it. copied: those that it has a copy of; whoever has one gets it before others do.
    """
    members = sorted(held)
    least, extra = divmod(len(numbers), len(members))
    dealt: dict[str, set[int]] = {member: set() for member in members}
    taken: set[int] = set()
    # Those who held most keep the larger shares, so that fewer partitions move.
    for member in sorted(members, key=lambda m: (-len(held[m]), m)):
        quota = least + (extra > 0)
        keep = sorted(number for number in held[member] if number in numbers and number not in taken)[:quota]
        if len(keep) > least:
            extra -= 1
        dealt[member].update(keep)
        taken.update(keep)
    orphans = [n for n in numbers if n not in taken]
    warm = [(n, member) for n in orphans for member in members if n in copied.get(member, ())]
    # Those with a copy first, where their share has room for it.
    for number, member in sorted(warm, key=lambda pair: (len(dealt[pair[1]]), pair)):
        quota = least + (extra > 0)
        if number not in taken and len(dealt[member]) < quota:
            dealt[member].add(number)
            taken.add(number)
            if len(dealt[member]) > least:
                extra -= 1
    for number in (n for n in orphans if n not in taken):
        dealt[min(members, key=lambda m: (len(dealt[m]), m))].add(number)
    return dealt


def deal_copies(count: int, dealt: Numbers, copied: Numbers) -> dict[str, set[int]]:
    """Which members keep copies: count of each number, never with its owner, and who has one keeps it.

    Fewer where there are not so many members. Sizes differ as little as that allows.
    """
    copies: dict[str, set[int]] = {member: set() for member in dealt}
    for owner, numbers in sorted(dealt.items()):
        for number in sorted(numbers):
            others = sorted(
                (member for member in dealt if member != owner),
                key=lambda m: (number not in copied.get(m, ()), len(copies[m]), m),
            )
            for member in others[:count]:
                copies[member].add(number)
    return copies


class TaskAssignor(PartitionAssignor):
    """Faust's assignor groups topics by equal partition count and identical subscribers: in a rolling upgrade that
    adds a topic two workers would get partition p of different groups, and fence each other for ever. Ours has one
    group. A member gets of each number the topics that it reads; one that nobody reads yet waits."""

    fits: bool
    """Whether what we were dealt last was dealt to what we are now. The group deals nothing anew when a member comes
    back under its name (KIP-345), so the first assignment may be one of an older release at another address."""

    def on_assignment(self, assignment: ConsumerProtocolMemberMetadata) -> None:
        """Takes over what the group has dealt."""
        dealt: Any = ClientMetadata.loads(self._decompress(assignment.user_data))
        self._assignment = dealt.assignment
        self._topic_groups = dict(dealt.topic_groups)
        self._active_tps = self._assignment.active_tps
        self._standby_tps = self._assignment.standby_tps
        self.changelog_distribution = dealt.changelog_distribution
        self.external_topic_distribution = dealt.external_topic_distribution
        topics = {topic for topic, _ in assignment.assignment}
        self.fits = dealt.url == str(self._url) and topics in (set(), self._read)

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """What the group's leader is told of us."""
        self._read = set(topics)
        return super().metadata(topics)

    def _perform_assignment(
        self, cluster: ClusterMetadata, member_metadata: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        clients = {member: self._get_client_metadata(metadata) for member, metadata in member_metadata.items()}
        self._update_member_urls(clients)
        counts = {
            topic: len(cluster.partitions_for_topic(topic) or ())
            for metadata in member_metadata.values()
            for topic in metadata.subscription
        }
        held = {member: _numbers(client.assignment.actives) for member, client in clients.items()}
        copied = {member: _numbers(client.assignment.standbys) for member, client in clients.items()}
        dealt = deal(range(max(counts.values(), default=0)), held, copied)
        copies = deal_copies(self.replicas, dealt, {m: held[m] | copied[m] for m in held})
        assignments = {}
        for member, metadata in member_metadata.items():
            actives, standbys = (
                {t: ns for t in metadata.subscription if (ns := sorted(n for n in numbers if n < counts[t]))}
                for numbers in (dealt[member], copies[member])
            )
            assignments[member] = ClientAssignment(actives=actives, standbys=standbys)
        distribution = self._get_external_topic_distribution(assignments)
        return dict(self._protocol_assignments(assignments, {}, distribution, dict.fromkeys(counts, 0)))


def _numbers(topics: Mapping[str, list[int]]) -> set[int]:
    return {number for numbers in topics.values() for number in numbers}
