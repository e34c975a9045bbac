"""Views of whole workers: any of them answers for any key, requests reach the judge, the command line has its say."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AdminClient

from tests import tally
from tests.kafka import EMBEDDED_LATER, Broker
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS, Sent, observation, recount
from tests.worker import Answer, Worker, free_port, has_ipv6, until

LOOPBACK = "::1" if has_ipv6() else "127.0.0.1"
STRANGE = ["a/b", "a%2Fb", "ü 日本", "a?b=c&d#e", "100%", 'say "hi"', "..x", "a+b"]


def post(worker: Worker, path: str, body: Any, token: str | None = None) -> Answer:
    request = urllib.request.Request(
        f"http://127.0.0.1:{worker.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return Answer(response.status, response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode())


@EMBEDDED_LATER
def test_a_model_deployed_over_http_answers_and_any_worker_has_any_session(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        first, second = (rig.worker(name, web_token="all").start() for name in ("a", "b"))
        for worker in (first, second):
            until(lambda w=worker: "no model" in w.get("/health/ready").text, 40, what="up", alive=[worker])  # type: ignore[misc]
        tally.publish(rig.store, "1")
        accepted = post(first, f"/models/{tally.NAME}", {"active": "1", "author": "ann"}, "all")
        assert accepted.status == 202, accepted
        assert accepted.json()["topic"] == rig.topic("control")
        for worker in (first, second):
            worker.wait_ready()
            shown = worker.get("/models", token="all").json()
            assert shown["models"][tally.NAME]["version"] == "1"
            assert shown["store"] == {tally.NAME: ["1"]}

        sent = [Sent(f"e{n}", session, EPOCH_MS + n, float(n % 4)) for n, session in enumerate(STRANGE * 3)]
        for one in sent:
            rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
        rig.publisher.flush()
        rig.wait_records("predictions", len(sent))
        for session, counted in recount(sent).items():
            for worker in (first, second):
                answer = worker.get(f"/tables/sessions/{quote(session, safe='')}", token="all")
                assert answer.status == 200, (session, answer)
                assert answer.json()["count"] == counted.count
        owned = [worker.get("/tables", token="all").json()["partitions"]["open"] for worker in (first, second)]
        assert sorted(owned[0] + owned[1]) == list(range(rig.partitions))
        listed = [worker.get("/tables/sessions?limit=1000", token="all").json()["items"] for worker in (first, second)]
        assert sorted(item["key"] for items in listed for item in items) == sorted(STRANGE)
        assert first.get("/tables/deployments/tally", token="all").json()["author"] == "ann"


def test_a_worker_that_the_group_gives_nothing_is_ready_passes_requests_on_and_takes_over(rig_of_one: Rig) -> None:
    rig = rig_of_one
    workers = [rig.worker(name, session_timeout=3).start() for name in ("a", "b")]
    rig.deploy()
    rig.sender().send(50)
    rig.wait_predictions()
    parts = [len(worker.get("/tables").json()["partitions"]["open"]) for worker in workers]
    assert sorted(parts) == [0, 1]
    path = f"/tables/sessions/{rig.sent[0].session}"
    assert {worker.get(path).status for worker in workers} == {200}

    owner, other = workers if parts == [1, 0] else reversed(workers)
    owner.kill()
    answers = []

    def taken_over() -> bool:
        answers.append(other.get(path))
        return answers[-1].status == 200

    until(taken_over, 20, what="the other worker has the session", alive=[other])
    assert {answer.status for answer in answers[:-1]} == {503}, answers
    assert {answer.retry_after for answer in answers[:-1]} == {"1"}, "whoever asks is told when to ask again"


@pytest.fixture
def rig_of_one(kafka: Broker, tmp_path: Path) -> Any:
    """One partition."""
    with rig_on(kafka, tmp_path, partitions=1) as rig:
        yield rig


def test_address_and_port_of_the_command_line_win_and_are_what_other_workers_are_told(rig: Rig) -> None:
    bind, port = LOOPBACK, free_port()
    first = rig.worker("a", arguments=["--web-bind", bind, "--web-port", str(port)])
    first.host, first.port = bind, port
    second = rig.worker("b", web_bind=bind)
    first.start()
    second.start()
    rig.deploy()
    rig.sender().send(200)
    rig.wait_predictions()
    for worker in (first, second):
        assert worker.url in worker.log(None), "it says where it is"
        assert worker.get("/health/ready").status == 200
        for session in sorted({one.session for one in rig.sent})[:20]:
            assert worker.get(f"/tables/sessions/{session}").status == 200


def test_it_answers_while_there_is_no_broker_and_says_so(tmp_path: Path) -> None:
    port, nobody = free_port(), free_port()
    worker = Worker(
        "a", tmp_path, {"HOMUNCULUS_BROKER": f"kafka://127.0.0.1:{nobody}", "HOMUNCULUS_WEB_PORT": str(port)}
    ).start()
    try:
        until(lambda: worker.get("/health/live").status == 200, 30, what="alive", alive=[worker])
        answer = worker.get("/health/ready")
        assert answer.status == 503
        assert "broker" in answer.text
    finally:
        worker.close()


def test_a_taken_port_ends_the_start_with_its_number(rig: Rig) -> None:
    first = rig.worker("a").start()
    until(lambda: first.get("/health/live").status == 200, 30, what="alive", alive=[first])
    second = rig.worker("b", web_port=first.port).start()
    assert second.wait(40) > 0
    assert str(first.port) in second.log()
    assert "--web-port" in second.log()


def test_ten_followers_do_not_hold_up_sigterm(rig: Rig) -> None:
    worker = rig.worker("a", worker_id=None).start()
    rig.deploy()
    rig.sender().send(50)
    rig.wait_predictions()
    group, followers = f"{rig.prefix}app", []
    with ExitStack() as stack:
        for one in rig.sent[:10]:
            url = f"{worker.url}/tables/sessions/{one.session}/watch"
            followers.append(stack.enter_context(urllib.request.urlopen(url, timeout=10)))
            until(lambda: followers[-1].readline().startswith(b"data: "), 5, what="the first value")
        assert members(rig.broker.bootstrap, group) == 1
        os.kill(worker.pid, signal.SIGTERM)
        until(lambda: members(rig.broker.bootstrap, group) == 0, 2, what="the worker has left the group")
        assert all(b"the worker stops" in follower.read() for follower in followers)
    assert worker.wait(5) == 0


def members(bootstrap: str, group: str) -> int:
    """How many a consumer group has."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([group], request_timeout=5)[group].result(5)
    return len(described.members)
