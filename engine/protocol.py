"""Requests of Kafka's protocol that aiokafka lacks, each in its first useful version.

Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.protocol.admin import DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

UNSTABLE_OFFSET_COMMIT = 88
"""A transaction that isn't decided yet holds the partition's offset (KIP-447)."""

_TEXT = CompactString("utf-8")
_PLAIN = String("utf-8")
_TAGS = ("tags", TaggedFields)


def _list(*fields: tuple[str, object]) -> Array:
    return CompactArray(*fields, _TAGS)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return topics


class TxnOffsetCommitResponse_v3(Response):  # noqa: N801  as aiokafka names its own
    API_KEY = 28
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", _list(("topic", _TEXT), ("partitions", _list(("partition", Int32), ("error_code", Int16))))),
        _TAGS,
    )


class TxnOffsetCommitRequest_v3(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 28
    API_VERSION = 3
    RESPONSE_TYPE = TxnOffsetCommitResponse_v3
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("group_id", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        (
            "topics",
            _list(
                ("topic", _TEXT),
                (
                    "partitions",
                    _list(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", _TEXT)),
                ),
            ),
        ),
        _TAGS,
    )


class TxnOffsetCommitRequest(Request[TxnOffsetCommitRequest_v3]):
    """Offsets within a transaction, from a member of the group: refused when the member is no longer one."""

    API_KEY = 28

    def __init__(
        self,
        transactional_id: str,
        group: str,
        producer: tuple[int, int],
        member: tuple[int, str, str | None],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """producer: id and epoch; member: generation, member id, instance id."""
        self._head = (transactional_id, group, *producer, *member)
        self._topics: list[Any] = [
            (topic, [(n, offsets[TopicPartition(topic, n)], -1, "", {}) for n in numbers], {})
            for topic, numbers in _by_topic(offsets).items()
        ]

    def build(self, request_struct_class: type[TxnOffsetCommitRequest_v3]) -> TxnOffsetCommitRequest_v3:
        return request_struct_class(*self._head, self._topics, {})


class OffsetFetchResponse_v7(Response):  # noqa: N801
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            _list(
                ("topic", _TEXT),
                (
                    "partitions",
                    _list(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        ("error_code", Int16),
                    ),
                ),
            ),
        ),
        ("error_code", Int16),
        _TAGS,
    )


class OffsetFetchRequest_v7(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("topics", _list(("topic", _TEXT), ("partitions", CompactArray(Int32)))),
        ("require_stable", Boolean),
        _TAGS,
    )


class StableOffsetFetchRequest(Request[OffsetFetchRequest_v7]):
    """A group's offsets; UNSTABLE_OFFSET_COMMIT for each that a transaction is about to change."""

    API_KEY = 9

    def __init__(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        self._group = group
        self._topics: list[Any] = [(topic, numbers, {}) for topic, numbers in _by_topic(partitions).items()]

    def build(self, request_struct_class: type[OffsetFetchRequest_v7]) -> OffsetFetchRequest_v7:
        return request_struct_class(self._group, self._topics, True, {})


class ListTransactionsResponse_v0(Response):  # noqa: N801
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", CompactArray(_TEXT)),
        ("transactions", _list(("transactional_id", _TEXT), ("producer_id", Int64), ("state", _TEXT))),
        _TAGS,
    )


class ListTransactionsRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 66
    API_VERSION = 0
    RESPONSE_TYPE = ListTransactionsResponse_v0
    SCHEMA = Schema(("state_filters", CompactArray(_TEXT)), ("producer_id_filters", CompactArray(Int64)), _TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequest_v0]):
    """The transactional ids that a broker coordinates, with their producers."""

    API_KEY = 66

    def build(self, request_struct_class: type[ListTransactionsRequest_v0]) -> ListTransactionsRequest_v0:
        return request_struct_class([], [], {})


class DescribeTransactionsResponse_v0(Response):  # noqa: N801
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            _list(
                ("error_code", Int16),
                ("transactional_id", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("started_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", _list(("topic", _TEXT), ("partitions", CompactArray(Int32)))),
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("transactional_ids", CompactArray(_TEXT)), _TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):
    """What is open under transactional ids that this broker coordinates."""

    API_KEY = 65

    def __init__(self, transactional_ids: list[str]) -> None:
        self._ids = transactional_ids

    def build(self, request_struct_class: type[DescribeTransactionsRequest_v0]) -> DescribeTransactionsRequest_v0:
        return request_struct_class(self._ids, {})


class DescribeProducersResponse_v0(Response):  # noqa: N801
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            _list(
                ("topic", _TEXT),
                (
                    "partitions",
                    _list(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        (
                            "producers",
                            _list(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("open_since_offset", Int64),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        _TAGS,
    )


class DescribeProducersRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA = Schema(("topics", _list(("topic", _TEXT), ("partitions", CompactArray(Int32)))), _TAGS)


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):
    """Who has written to partitions that this broker leads, and whose transaction is open there."""

    API_KEY = 61

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self._topics: list[Any] = [(topic, numbers, {}) for topic, numbers in _by_topic(partitions).items()]

    def build(self, request_struct_class: type[DescribeProducersRequest_v0]) -> DescribeProducersRequest_v0:
        return request_struct_class(self._topics, {})


class MetadataResponse_v8(Response):  # noqa: N801
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", _PLAIN), ("port", Int32), ("rack", _PLAIN))),
        ("cluster_id", _PLAIN),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", _PLAIN),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class MetadataRequest_v8(RequestStruct):  # noqa: N801
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = MetadataResponse_v8
    SCHEMA = Schema(
        ("topics", Array(_PLAIN)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class TopicRightsRequest(Request[MetadataRequest_v8]):
    """Topics by name, and what we may do with each. None is created by being asked for."""

    API_KEY = 3

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[MetadataRequest_v8]) -> MetadataRequest_v8:
        return request_struct_class(self._topics, False, False, True)


class DescribeGroupsRequest_v3(RequestStruct):  # noqa: N801
    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = DescribeGroupsResponse_v3
    SCHEMA = Schema(("groups", Array(_PLAIN)), ("include_authorized_operations", Boolean))


class GroupRightsRequest(Request[DescribeGroupsRequest_v3]):
    """A consumer group, and what we may do with it. aiokafka's own reads the answer as an older one."""

    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[DescribeGroupsRequest_v3]) -> DescribeGroupsRequest_v3:
        return request_struct_class([self._group], True)
