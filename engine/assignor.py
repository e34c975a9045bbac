"""Who gets which partition: numbers are dealt, not topics, so that partition p of every topic has one owner."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor


def deal(numbers: range, held: Mapping[str, set[int]]) -> dict[str, set[int]]:
    """Partition numbers to members: sizes differ by one at most, and whoever held one keeps it if that allows.

    held: member -> the numbers that it had. Where two claim one (a member that comes back after a silence), the first
    by name keeps it.
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
    for number in (n for n in numbers if n not in taken):
        dealt[min(members, key=lambda m: (len(dealt[m]), m))].add(number)
    return dealt


class TaskAssignor(PartitionAssignor):
    """Faust's assignor groups topics by equal partition count and identical subscribers: in a rolling upgrade that
    adds a topic two workers would get partition p of different groups, and fence each other for ever. Ours has one
    group. A member gets of each number the topics that it reads; one that nobody reads yet waits."""

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
        held = {
            member: {n for numbers in client.assignment.actives.values() for n in numbers}
            for member, client in clients.items()
        }
        assignments = {}
        for member, numbers in deal(range(max(counts.values(), default=0)), held).items():
            topics = member_metadata[member].subscription
            actives = {topic: sorted(n for n in numbers if n < counts[topic]) for topic in topics}
            assignments[member] = ClientAssignment(actives={t: ns for t, ns in actives.items() if ns}, standbys={})
        distribution = self._get_external_topic_distribution(assignments)
        return dict(self._protocol_assignments(assignments, {}, distribution, dict.fromkeys(counts, 0)))
