"""The wire between worker and broker fails in every way that wires fail in: the worker finds its way back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.proxy import Proxy
from tests.rig import Rig, rig_on
from tests.worker import Worker, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def rig(wired_kafka: tuple[Broker, Proxy], wire: Proxy, tmp_path: Path) -> Iterator[Rig]:
    """Four partitions; a worker is at the wire unless told otherwise."""
    broker, _ = wired_kafka
    with rig_on(broker, tmp_path) as rig:
        rig.defaults["broker"] = f"kafka://127.0.0.1:{wire.port}"
        yield rig


@pytest.mark.parametrize("away_s", [1, 10, 60])
def test_what_a_held_up_wire_delivers_late_does_no_harm(rig: Rig, wire: Proxy, away_s: int) -> None:
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        wire.hold()
        rig.wait_out(away_s)
        wire.release()
        rig.wait_progress(1000, within_s=90)
    rig.assert_exact()


@pytest.mark.parametrize("away_s", [1, 60])
def test_a_broker_that_refuses_connections_is_waited_for(rig: Rig, wire: Proxy, away_s: int) -> None:
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        wire.refuse()
        rig.wait_out(away_s)
        wire.listen()
        rig.wait_progress(1000, within_s=90)
    rig.assert_exact()


def test_connections_that_die_without_a_word_are_given_up(rig: Rig, wire: Proxy) -> None:
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        wire.forget()
        rig.wait_progress(500, within_s=90)
    rig.assert_exact()


def test_a_broker_that_takes_connections_and_never_answers_is_waited_for(rig: Rig, wire: Proxy) -> None:
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        wire.forget()
        wire.hold()
        rig.wait_out(20)
        wire.release()
        rig.wait_progress(500, within_s=90)
    rig.assert_exact()


def test_a_worker_that_starts_while_nobody_answers_waits_for_an_answer(rig: Rig, wire: Proxy) -> None:
    wire.hold()
    worker = rig.worker("a").start()
    worker.wait_log("No broker answers")
    wire.release()
    rig.deploy()
    rig.sender().send(1000)
    rig.assert_exact()


def test_a_slow_wire_makes_it_slow_and_nothing_else(rig: Rig, wire: Proxy) -> None:
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=20, sessions=20):
        rig.wait_progress(20)
        wire.slow(0.05, 20_000)
        rig.wait_progress(400, within_s=60)
        wire.slow()
    rig.assert_exact()


def test_connections_that_are_cut_at_random_cost_no_event(rig: Rig, wire: Proxy) -> None:
    chance = random.Random(11)
    rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        for _ in range(60):
            wire.cut(chance)
            rig.wait_out(chance.uniform(0.05, 0.8))
        rig.wait_progress(1000, within_s=90)
    rig.assert_exact()


def test_a_worker_that_is_cut_off_while_another_takes_over_writes_nothing_when_it_is_back(
    rig: Rig, wire: Proxy
) -> None:
    worker = rig.worker("a", session_timeout=3).start()
    rig.worker("b", session_timeout=3, broker=rig.broker.url).start()
    rig.deploy()
    with rig.sender(rate=500):
        for fault in (wire.hold, wire.forget):
            rig.wait_progress(500)
            worker.expected = False  # it may find that it was fenced, and end
            rejoined = rejoins(worker)
            fault()
            rig.wait_out(6)
            rig.wait_progress(1000)
            wire.release()
            # Until it has heard of it, its views show what it had.
            knows = partial(learned, worker, rejoined)
            until(knows, 90, what="the one that was cut off knows that others have its partitions")
            if not worker.running:
                assert worker.exit_code == 3, worker.log()
                worker.start()
            worker.expected = True
            worker.wait_ready()
            rig.wait_progress(1000)
    rig.assert_exact()


def learned(worker: Worker, rejoined: int) -> bool:
    """Whether it has ended, or is back at work."""
    return not worker.running or (rejoins(worker) > rejoined and worker.ready())


def rejoins(worker: Worker) -> int:
    return worker.log(None).count("re-joining group")


def test_a_worker_that_is_stopped_while_its_broker_is_out_of_reach_ends_in_time(rig: Rig, wire: Proxy) -> None:
    worker = rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=500):
        rig.wait_progress(500)
        wire.hold()
        rig.wait_out(1)
        assert worker.terminate() == 0, worker.log()
        wire.release()
        worker.start().wait_ready()
        rig.wait_progress(500)
    rig.assert_exact()
