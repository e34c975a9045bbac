"""An agent that raises costs the record that it can't process, and nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict

import pytest

from tests.clumsy.app import Order
from tests.rig import Rig
from tests.worker import Worker, tails, until

APP = "tests.clumsy.app"


def send(rig: Rig, topic: str, orders: list[Order]) -> None:
    for order in orders:
        value = {
            "id": order.id,
            "session": order.session,
            "amount": order.amount,
            "poison": order.poison,
            "work_s": order.work_s,
        }
        rig.publisher.send(rig.topic(topic), order.session.encode(), json.dumps(value).encode())
    until(rig.publisher.delivered, 30, what=f"the orders are on {topic}")


def table(worker: Worker, name: str, key: str) -> object:
    answer = worker.get(f"/tables/{name}/{key}")
    return answer.json() if answer.status == 200 else None


def test_a_record_that_an_agent_fails_on_is_a_dead_letter_and_its_neighbours_count(rig: Rig) -> None:
    chance = random.Random(5)
    orders = [
        Order(f"o{n}", f"s{chance.randrange(40)}", chance.randrange(100), chance.random() < 0.01) for n in range(2000)
    ]
    poisoned = {order.id for order in orders if order.poison}
    expected = Counter[str]()
    for order in orders:
        expected[order.session] += 0 if order.poison else order.amount
    worker = rig.worker("a", app=APP).start().wait_log("is open")

    send(rig, "orders", orders)

    until(
        lambda: all(table(worker, "totals", session) == total for session, total in expected.items()),
        60,
        what="every session has the sum of its good orders",
        alive=[worker],
    )
    letters = rig.reader("dead-letters")
    rig.wait_records("dead-letters", len(poisoned))
    letters.catch_up()
    assert Counter(record.json["id"] for record in letters.records) == Counter(poisoned)
    for record in letters.records:
        assert record.headers["error"] == "ValueError"
        assert "poisoned" in record.headers["message"]
        assert record.headers["source"].startswith(rig.topic("orders") + "/")


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_long_work_is_concurrent_over_sessions_in_order_within_one_and_exact_through_a_kill(
    rig: Rig, guarantee: str
) -> None:
    chance = random.Random(6)
    orders = [
        Order(f"o{n}", f"s{chance.randrange(30)}", 1, n % 50 == 7, 0.4 if n % 97 == 0 else 0.002) for n in range(600)
    ]
    expected = defaultdict(list)
    for order in orders:
        if not order.poison:
            expected[order.session].append(order.id)
    worker = rig.worker("a", app=APP, guarantee=guarantee).start().wait_log("is open")

    send(rig, "slow-orders", orders)
    rig.wait_records("receipts", 100)
    worker.kill()
    worker.start()

    until(
        lambda: all(table(worker, "receipts", session) == ids for session, ids in expected.items()),
        60,
        what="every session has all its receipts, in order",
        alive=[worker],
    )
    assert worker.terminate() == 0, tails([worker])
    reader = rig.reader("receipts")
    reader.catch_up()
    longest = Counter(json.dumps(record.json) for record in reader.records)
    assert set(longest) == {json.dumps(ids[: n + 1]) for ids in expected.values() for n in range(len(ids))}
    if guarantee == "exactly_once":
        assert set(longest.values()) == {1}
