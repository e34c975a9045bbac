"""Garbage on control and on deployments: each is an alert or a dead letter, and what is deployed stays so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported, not listed
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests import tally
from tests.command import command
from tests.rig import Rig
from tests.stream import Record
from tests.worker import Worker, until

MODEL: Final = tally.NAME.encode()
MEGABYTE: Final = 1_000_000


def asked(**request: Any) -> bytes:
    return json.dumps(request).encode()


class Odd(NamedTuple):
    """A record on control, and a word that the reason for its refusal must have."""

    value: bytes | None
    says: str
    key: bytes | None = MODEL


DEAD: Final[Mapping[str, Odd]] = {
    "not JSON": Odd(b"hello", "JSON"),
    "not UTF-8": Odd(b'{"active": "\xff\xfe"}', "JSON"),
    "empty": Odd(b"", "JSON"),
    "null": Odd(None, "null"),
    "a list": Odd(b"[]", "object"),
    "nested deeply": Odd(b'{"limits":' * 100_000, "JSON"),
    "a version that is a number": Odd(asked(active=2), "active"),
    "a version that is a path": Odd(asked(active="../../2"), "active"),
    "an action that nobody knows": Odd(asked(action="explode"), "action"),
    "a field that nobody knows": Odd(asked(active="2", verison="3"), "verison"),
    "a share of 2": Odd(asked(action="canary", version="2", share=2), "share"),
    "a share that is NaN": Odd(asked(action="canary", version="2", share=float("nan")), "share"),
    "a megabyte of reasons": Odd(asked(active="2", reason="x" * (MEGABYTE - 1000)), "reason"),
    "a revision below 0": Odd(asked(active="2", based_on=-1), "based_on"),
    "no key": Odd(asked(active="2"), "key", None),
    "an empty key": Odd(asked(active="2"), "key", b""),
    "a key that is not UTF-8": Odd(asked(active="2"), "key", b"\xff\xfe"),
    "a key that is a path": Odd(asked(active="2"), "key", b"../tally"),
    "a key of a megabyte": Odd(asked(active="2"), "key", b"x" * (MEGABYTE - 1000)),
}
REFUSED: Final[Mapping[str, Odd]] = {
    "a version that isn't there": Odd(asked(active="9"), "not in the store"),
    "a model that isn't there": Odd(asked(active="2"), "not in the store", b"oracle"),
    "a limit that is NaN": Odd(asked(active="2", limits={"max_error": float("nan")}), "max_error"),
    "a limit beyond all numbers": Odd(b'{"active": "2", "limits": {"max_error": 1e400}}', "max_error"),
    "based on another revision": Odd(asked(active="2", based_on=7), "based on revision 7"),
    "a revision of 400 digits": Odd(asked(active="2", based_on=10**400), "based on revision 10000"),
    "a way back to nothing": Odd(asked(action="rollback"), "no version was active before"),
    "nothing to repeat": Odd(asked(action="republish"), "nothing to repeat", b"oracle"),
}


def test_garbage_on_control_and_on_deployments_is_told_and_what_is_deployed_stays(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy("1")
    ask_oddly(rig, worker)
    displace(rig)
    assert version(worker) == "2"
    rig.sender().send(200)
    rig.assert_exact()


def ask_oddly(rig: Rig, worker: Worker) -> None:
    """Each odd request is a dead letter or an alert with its reason, and the next good one is done."""
    tally.publish(rig.store, "2")
    odd = {**DEAD, **REFUSED}
    for one in odd.values():
        rig.publisher.send(rig.topic("control"), one.key, one.value)
    rig.control({"active": "2"})
    until(lambda: version(worker) == "2", 60, what="the request after all the garbage is done", alive=[worker])
    rig.wait_records("dead-letters", len(DEAD))
    rig.wait_records("alerts", len(REFUSED))

    control = rig.reader("control")
    control.catch_up()
    places = {(r.key, r.value): f"{r.topic}/{r.partition}/{r.offset}" for r in control.records}
    letters = {r.headers["source"]: r.headers["message"] for r in rig.reader("dead-letters").records}
    alerts = {r.json["evidence"]["request"]: r.json["title"] for r in rig.reader("alerts").records}
    assert (len(letters), len(alerts)) == (len(DEAD), len(REFUSED))
    for kinds, told in ((DEAD, letters), (REFUSED, alerts)):
        for kind, one in kinds.items():
            why = told[places[one.key, one.value]]
            assert one.says in why, kind
            assert len(why) < 1000, "a reason, not the request again"
    accepted = [(r.json["active"], r.json["revision"]) for r in rig.reader("deployments").read_out()]
    assert accepted == [("1", 1), ("2", 2)]


def displace(rig: Rig) -> None:
    """What stands in a deployment's place is told, and the deployment is written again."""
    good = rig.reader("deployments").read_out()[-1].value
    other = json.dumps({"model": "oracle", "revision": 9, "active": "1", "since": 0}).encode()
    later = json.dumps({"model": tally.NAME, "revision": "soon", "active": "1", "since": 0}).encode()
    for number, value in enumerate((None, b"\xff\xfe", other, later, b"[" * 100_000), start=1):
        rig.publisher.send(rig.topic("deployments"), MODEL, value)
        rig.wait_records("deployments", 2 + 2 * number)
    rig.publisher.send(rig.topic("deployments"), b"no model's name", b"x" * (MEGABYTE - 1000))
    rig.wait_records("alerts", len(REFUSED) + 6)

    found = [record.value for record in rig.reader("deployments").records if record.key == MODEL]
    assert Counter(value == good for value in found) == {True: 6, False: 6}
    assert found[-1] == good
    alerts = [alert for alert in (r.json for r in rig.reader("alerts").records) if alert["kind"] != "request_refused"]
    assert {(alert["kind"], alert["state"]) for alert in alerts} == {("deployment_displaced", "opened")}
    assert len({alert["id"] for alert in alerts}) == 6


@pytest.mark.long
def test_a_worker_that_finds_neither_deployment_nor_version_has_both_as_soon_as_they_can_be_had(rig: Rig) -> None:
    """Garbage alone stands on the topic, as after its compaction, but the judge's table knows better; and the version
    is out of reach for a while."""
    worker = rig.worker("a").start()
    rig.deploy("1")
    worker.kill()
    rig.publisher.send(rig.topic("deployments"), MODEL, b"garbage")
    rig.publisher.flush()
    forget_before(rig, rig.reader("deployments").read_out()[-1])
    folder, away = rig.store / tally.NAME / "1", rig.folder / "away"
    folder.rename(away)
    worker.start()
    rig.wait_records("alerts", 1)
    assert not worker.ready()
    away.rename(folder)
    worker.wait_ready()
    rig.wait_records("alerts", 2)
    alerts = [record.json for record in rig.reader("alerts").records]
    assert [(alert["kind"], alert["state"], alert["subject"]) for alert in alerts] == [
        ("load_failed", "opened", "tally@1"),
        ("load_failed", "resolved", "tally@1"),
    ]
    rig.sender().send(200)
    rig.assert_exact()


def forget_before(rig: Rig, record: Record) -> None:
    """Takes away what is older; Kafka does that for topics alone that aren't kept whole."""
    admin = AdminClient({"bootstrap.servers": rig.broker.bootstrap})
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, record.topic, incremental_configs=[entry])
        admin.incremental_alter_configs([topic])[topic].result(30)
        if policy == "delete":
            place = TopicPartition(record.topic, record.partition, record.offset)
            admin.delete_records([place])[place].result(30)


def version(worker: Worker) -> str | None:
    """The active one."""
    found = worker.get("/models").json()["models"].get(tally.NAME, {}).get("version")
    return None if found is None else str(found)


def test_a_deployment_that_somebody_else_has_written_is_undone_and_the_commands_go_on(rig: Rig) -> None:
    tally.publish(rig.store, "1")
    tally.publish(rig.store, "2")
    worker = rig.worker("a").start()
    rig.deploy("1")
    forged = {"model": tally.NAME, "revision": 50, "active": "2", "since": 7}
    rig.publisher.send(rig.topic("deployments"), MODEL, json.dumps(forged).encode())
    rig.publisher.send(rig.topic("deployments"), b"ghost", json.dumps(forged | {"model": "ghost"}).encode())
    rig.publisher.send(rig.topic("deployments"), b"\xff\x01", b"garbage")
    until(lambda: version_of(worker) == ("1", 51), 30, what="the judge's own is back", alive=[worker])
    until(lambda: "ghost" not in worker.get("/models").json()["models"], 30, what="the ghost has gone", alive=[worker])
    until(worker.ready, 20, what="the worker is ready", alive=[worker])
    alerts = rig.reader("alerts")
    alerts.catch_up()
    told = {record.json["subject"] for record in alerts.records if record.json["kind"] == "deployment_displaced"}
    assert {tally.NAME, "ghost"} <= told
    rig.control({"active": "2", "author": "anna"})
    until(lambda: version_of(worker) == ("2", 52), 30, what="requests go on", alive=[worker])
    settings = {key.removeprefix("HOMUNCULUS_").lower(): value for key, value in worker.environment.items()}
    listed = command("models", "list", **settings)
    assert listed.returncode == 0, listed.stderr
    assert "has something else under" in listed.stderr
    worker.kill()
    worker.start().wait_ready()
    assert version_of(worker) == ("2", 52)


def version_of(worker: Worker) -> tuple[str | None, int | None]:
    found = worker.get("/models").json()["models"].get(tally.NAME, {})
    return found.get("version"), found.get("revision")
