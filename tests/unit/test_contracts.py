"""The private parts of Faust and aiokafka that engine/ leans on: an upgrade that moves one fails here, by name."""

from __future__ import annotations

import atexit
import inspect
import threading
from importlib.metadata import version
from typing import Any

import aiokafka
import faust
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.consumer import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol import produce
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from faust.app.base import BootStrategy
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables import TableManager
from faust.transport import consumer as faust_consumer
from faust.types import ConsumerMessage

from engine import wire


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_pinned_releases_are_installed() -> None:
    assert version("faust-streaming") == "0.15.3"
    assert version("aiokafka") == "0.14.0"


def test_aiokafka_takes_its_records_from_the_iterator_that_we_replace() -> None:
    assert "self._records_iterator = self._unpack_records()" in inspect.getsource(PartitionRecords.__init__)
    assert "for msg in self._partition_records:" in inspect.getsource(FetchResult.getall)
    assert "self._partition_records.next_fetch_offset" in inspect.getsource(FetchResult._update_position)


def test_aiokafkas_compiled_record_has_what_ours_promises() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 1 << 16)
    builder.append(0, 1234, b"key", b"value", [("source", b"a/0/1")])
    record = next(iter(MemoryRecords(bytes(builder.build())).next_batch()))
    assert (record.offset, record.timestamp, record.key, record.value) == (0, 1234, b"key", b"value")
    assert list(record.headers) == [("source", b"a/0/1")]


def test_a_full_batch_says_none_and_takes_headers() -> None:
    builder = BatchBuilder(400, 0, is_transactional=True, key_serializer=None, value_serializer=None)
    answers = [builder.append(timestamp=1, key=b"k", value=b"v" * 100, headers=[("h", b"x")]) for _ in range(5)]
    assert answers[0] is not None
    assert answers[-1] is None
    assert builder.record_count() == sum(answer is not None for answer in answers)


def test_records_may_go_past_a_batch_into_its_builder() -> None:
    """What BatchBuilder.append() does, engine/outputs.py does itself: builder, then the count."""
    ours, theirs = (
        BatchBuilder(400, 0, is_transactional=True, key_serializer=None, value_serializer=None) for _ in range(2)
    )
    for place in range(2):
        theirs.append(timestamp=place, key=b"k", value=b"v", headers=[("h", b"x")])
        assert ours._builder.append(place, place, b"k", b"v", [("h", b"x")]) is not None
    ours._relative_offset = 2
    assert ours.record_count() == theirs.record_count()
    assert ours._build() == theirs._build()


def test_a_builder_takes_its_first_record_whatever_its_size_and_then_says_none() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 100)
    assert builder.append(0, 1, b"k", b"v" * 1000, []) is not None
    assert builder.append(1, 1, b"k", b"v", []) is None


@pytest.mark.parametrize("number", range(3, 8))
@pytest.mark.parametrize(
    "topics", [[], [("a", [])], [("a", [(0, b"x" * 300), (7, bytearray(b"y"))]), ("ö", [(1, b"")])]]
)
@pytest.mark.parametrize("transactional_id", [None, "app-1"])
def test_a_produce_request_is_the_same_bytes_in_one_piece(
    number: int, topics: list[Any], transactional_id: str | None
) -> None:
    request = getattr(produce, f"ProduceRequest_v{number}")(transactional_id, -1, 40_000, topics)
    theirs = request.encode()
    wire.install()
    try:
        assert request.encode() == theirs
    finally:
        wire.remove()
    assert request.encode() == theirs


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (AIOKafkaConsumer, ["_fetcher", "_coordinator", "_closed"]),
        (aiokafka.AIOKafkaProducer, ["_txn_manager"]),
        (TransactionManager, ["transaction_timeout_ms"]),
        (Fetcher, ["_closed", "_fetch_task", "_subscriptions", "_fetch_max_wait_ms", "_fetch_min_bytes"]),
        (AIOKafkaConnection, ["_requests", "_request_timeout"]),
        (GroupCoordinator, ["generation", "_coordination_task", "_metadata_snapshot", "_pending_exception"]),
        (TopicPartitionState, ["_position", "highwater", "lso"]),
        (faust_consumer.Consumer, ["flow_active", "can_resume_flow", "callback"]),
        (faust.Worker, ["spinner"]),
    ],
)
def test_these_attributes_are_still_set_by_their_owners(owner: type, names: list[str]) -> None:
    source = inspect.getsource(owner)
    for name in names:
        assert f"self.{name} = " in source or f"{name}: " in source, f"{owner.__name__}.{name}"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Fetcher.fetched_records, ["self", "partitions", "timeout", "max_records"]),
        (SubscriptionState.fetch_context, ["self"]),
        (AIOKafkaClient.send, ["self", "node_id", "request", "group"]),
        (AIOKafkaConnection.send, ["self", "request", "expect_response"]),
        (AIOKafkaConnection._send_sasl_token, ["self", "payload", "expect_response"]),
        (GroupCoordinator._maybe_leave_group, ["self"]),
        (TransactionManager.wait_for_pid, ["self"]),
        (TransactionManager.maybe_add_partition_to_txn, ["self", "tp"]),
        (TransactionManager.notify_task_waiter, ["self"]),
        (PartitionAssignor._perform_assignment, ["self", "cluster", "member_metadata"]),
        (PartitionAssignor._get_client_metadata, ["metadata"]),
        (PartitionAssignor._update_member_urls, ["self", "clients_metadata"]),
        (PartitionAssignor._get_external_topic_distribution, ["self", "assignments"]),
        (
            PartitionAssignor._protocol_assignments,
            ["self", "assignments", "cl_distribution", "tp_distribution", "topic_groups"],
        ),
        (BootStrategy.web_server, ["self"]),
        (TableManager._update_channels, ["self"]),
        (faust.Worker._sentinel_task, ["self"]),
        (faust.App.on_first_start, ["self"]),
        (faust.App._init_fixups, ["self"]),
    ],
)
def test_these_methods_still_take_what_we_give(method: Any, expected: list[str]) -> None:
    assert parameters(method) == expected


def test_a_table_manager_starts_with_a_sleep_and_with_what_ours_does() -> None:
    lines = [line.strip() for line in inspect.getsource(TableManager.on_start).splitlines()]
    assert lines[2:] == [
        "await self.sleep(1.0)",
        "if not self.should_stop:",
        "await self._update_channels()",
        "await self.recovery.start()",
    ]


def test_fausts_decorator_makes_an_agent_as_we_do() -> None:
    source = inspect.getsource(faust.App.agent)
    for line in ("on_error=self._on_agent_error", "self.agents[agent.name] = agent", "self.topics.beacon.add(agent)"):
        assert line in source


def test_python_ends_with_what_ours_does() -> None:
    assert parameters(threading._shutdown) == []  # type: ignore[attr-defined]
    assert callable(atexit._run_exitfuncs)


def test_fausts_fetcher_leaves_the_reading_to_the_consumer() -> None:
    assert "consumer._drain_messages(self)" in inspect.getsource(faust_consumer.Fetcher._fetcher.fun)


def test_a_message_takes_any_value_and_its_place_in_the_call() -> None:
    assert parameters(ConsumerMessage.__init__)[1:14] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "headers",
        "key",
        "value",
        "checksum",
        "serialized_key_size",
        "serialized_value_size",
        "tp",
        "time_in",
    ]
    anything: Any = [1, 2]
    message = ConsumerMessage("t", 0, 7, 1.0, 0, None, None, anything, None, 0, 0, None, generation_id=3)
    assert message.value is anything
    assert message.generation_id == 3


def test_assignments_travel_as_faust_reads_them() -> None:
    metadata = ClientMetadata(
        assignment=ClientAssignment(actives={"t": [0, 2]}, standbys={}),
        url="http://127.0.0.1:6066",
        changelog_distribution={},
        external_topic_distribution={"http://127.0.0.1:6066": {"t": [0, 2]}},
        topic_groups={"t": 0},
    )
    again = ClientMetadata.loads(metadata.dumps())
    assert again.assignment.actives == {"t": [0, 2]}
