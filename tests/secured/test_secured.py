"""A worker on a broker that asks everybody who they are and lets nobody do more than they must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from pydantic import SecretStr

from core.errors import NotAdmittedError, RightsError
from core.settings import Settings
from core.topics import ALL, changelog
from engine import rights
from engine.admin import ensure_topics
from engine.admission import admitted
from engine.changelog import POSITIONS
from engine.connection import Connection, client_options, connect
from engine.protocol import UNSTABLE_OFFSET_COMMIT, DescribeTransactionsRequest, StableOffsetFetchRequest
from tests.rig import Rig, rig_on
from tests.secured.certificates import KEY_PASSWORD
from tests.secured.kafka import MTLS, PASSWORD, SASL_PLAINTEXT, SASL_SSL, TLS, Right, SecuredKafka
from tests.secured.rights import least
from tests.worker import ROOT, Worker

TABLES = (
    "sessions",
    "deployments",
    "predicted",
    "references",
    "drift",
    "contexts",
    "answers",
    "documents",
    "retrievals",
    "reusable",
    "similar",
    "latest",
    POSITIONS,
)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECRETS = (PASSWORD, KEY_PASSWORD)


@pytest.fixture
def rig(secured: SecuredKafka, tmp_path: Path) -> Iterator[Rig]:
    """Tests come in by their own door; workers by the one that the test gives them."""
    with rig_on(secured.broker, tmp_path, partitions=2) as rig:
        yield rig


def application(rig: Rig) -> str:
    return f"{rig.prefix}app"


async def with_topics(rig: Rig) -> list[Right]:
    """Makes the application's topics, as an operator would, and returns the rights that its worker needs."""
    app_id = application(rig)
    settings = Settings(topic_prefix=rig.prefix, app_id=app_id, partitions=rig.partitions)
    specs = [*ALL, *(changelog(app_id, table) for table in TABLES)]
    await ensure_topics(rig.broker.bootstrap, specs, settings)
    return least(rig.prefix, app_id)


def login(secured: SecuredKafka, tmp_path: Path, mechanism: str = "PLAIN") -> dict[str, Any]:
    """Settings of a worker that comes in by SASL over TLS, its password in a file."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return {"broker": secured.url(sasl_mechanism=mechanism), "broker_password_file": file, "session_timeout": 3}


async def open_under(rig: Rig, worker: Worker) -> bool:
    """Whether the worker has a transaction open that already holds the offsets of its partitions."""
    app_id, marked = application(rig), rig.topic(changelog(application(rig), POSITIONS).name)
    client = AIOKafkaClient(bootstrap_servers=rig.broker.bootstrap)
    try:
        await client.bootstrap()
        node = client.get_random_node()
        found = await client.send(node, DescribeTransactionsRequest([f"{app_id}-{worker.name}"]))
        [(_, _, state, _, _, _, _, topics, _)] = found.transactions
        numbers = [number for topic, partitions, _ in topics if topic == marked for number in partitions]
        if state != "Ongoing" or not numbers:
            return False
        held = [TopicPartition(rig.topic("observations"), number) for number in numbers]
        offsets = await client.send(node, StableOffsetFetchRequest(app_id, held))
    finally:
        await client.close()
    return all(code == UNSTABLE_OFFSET_COMMIT for _, partitions, _ in offsets.topics for *_, code, _ in partitions)


def assert_secret(text: str) -> None:
    """Nothing of what was printed gives a secret away."""
    for secret in SECRETS:
        assert secret not in text, next(line for line in text.splitlines() if secret in line)


async def test_a_worker_needs_just_the_rights_in_the_docs_to_start_score_and_take_over_from_a_dead_one(
    secured: SecuredKafka, rig: Rig, tmp_path: Path
) -> None:
    secured.grant(await with_topics(rig))
    settings = login(secured, tmp_path, "SCRAM-SHA-512") | {"log_level": "debug", "commit_interval": 0.4}
    dead, heir = (rig.worker(name, **settings).start() for name in ("dead", "heir"))
    rig.deploy()
    heir.wait_log("No canary is ended by its limits here: the broker doesn't let us at topic")
    with rig.sender(rate=500):
        rig.wait_progress(200)
        dead.pause()
        while not (await open_under(rig, dead) and await open_under(rig, dead)):  # twice: its end may be on the way
            dead.resume()
            rig.wait_progress(50)
            dead.pause()
        os.kill(dead.pid, signal.SIGKILL)
        heir.wait_log(f"{application(rig)}-dead left a transaction open; it is taken from it")
        rig.wait_progress(500)
    rig.assert_exact()
    assert_secret(dead.log(None) + heir.log(None))


async def told(connection: Connection, needed: rights.Needed) -> str:
    try:
        await rights.check(connection, needed)
    except RightsError as error:
        return str(error)
    return ""


async def test_each_right_that_is_missing_is_named(secured: SecuredKafka, rig: Rig, tmp_path: Path) -> None:
    granted = await with_topics(rig)
    secured.grant(granted)
    app_id = application(rig)
    settings = Settings(
        broker=secured.url(), broker_password=SecretStr(PASSWORD), topic_prefix=rig.prefix, app_id=app_id, partitions=2
    )
    connection = await connect(settings, settings.broker)
    specs = [*ALL, *(changelog(app_id, table) for table in TABLES)]
    names = ("observations", "feedback", "messages", "documents", "control", "scores")
    sources = [rig.topic(name) for name in names]
    needed = rights.of_worker(specs, sources, [rig.topic("predictions")], connection)
    await until_told(connection, needed, "")
    for right in granted:
        secured.revoke(right)
        await until_told(connection, needed, missing(right))
        secured.grant([right])
    await until_told(connection, needed, "")


async def until_told(connection: Connection, needed: rights.Needed, words: str) -> None:
    """The broker's authorizer hears of a change a moment later."""
    deadline = time.monotonic() + 10
    while True:
        answer = await told(connection, needed)
        if words in answer and bool(answer) == bool(words):
            return
        assert time.monotonic() < deadline, f"{words!r} is not in {answer!r}"


def missing(right: Right) -> str:
    """How the lack of a right is told; a prefix stands at the start of a name."""
    kinds = {"group": "consumer group", "transactional-id": "every transactional id that begins with"}
    return f"{right.operation} on {kinds.get(right.kind, right.kind)} {right.name}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_told_at_once(secured: SecuredKafka, mechanism: str) -> None:
    bootstrap, security = client_options(
        secured.url(sasl_mechanism=mechanism), Settings(broker_password=SecretStr("wrong-one"))
    )
    with pytest.raises(NotAdmittedError, match=f"doesn't let 'worker' in by {mechanism}") as refused:
        await admitted(bootstrap, security)
    assert "wrong-one" not in str(refused.value)


async def test_a_broker_that_asks_for_a_certificate_is_told_at_once(secured: SecuredKafka) -> None:
    with pytest.raises(NotAdmittedError, match="doesn't take our certificate"):
        await admitted(*client_options(secured.url(MTLS)))


# -- long: every way in, every command, every right -----------------------------------------------------------------


def ways(secured: SecuredKafka) -> dict[str, dict[str, Any]]:
    """Settings for each way to come in as `worker`."""
    certificate, key = secured.certificates.client("worker")
    locked_certificate, locked_key = secured.certificates.client("worker", password=KEY_PASSWORD)
    found = {
        f"{one} {'in clear' if door == SASL_PLAINTEXT else 'over TLS'}": {
            "broker": secured.url(door, sasl_mechanism=one),
            "broker_password": PASSWORD,
        }
        for door in (SASL_SSL, SASL_PLAINTEXT)
        for one in MECHANISMS
    }
    found["a password in the URL"] = {"broker": secured.url().replace("worker@", f"worker:{PASSWORD}@")}
    found["TLS alone"] = {"broker": secured.url(TLS)}
    found["mutual TLS"] = {"broker": secured.url(MTLS, ssl_certfile=certificate, ssl_keyfile=key)}
    url = secured.url(MTLS, ssl_certfile=locked_certificate, ssl_keyfile=locked_key)
    found["mutual TLS with an encrypted key"] = {"broker": url, "broker_key_password": KEY_PASSWORD}
    return found


WAYS = (
    *(f"{one} {how}" for how in ("over TLS", "in clear") for one in MECHANISMS),
    *("a password in the URL", "TLS alone", "mutual TLS", "mutual TLS with an encrypted key"),
)
COMMANDS = (
    *(["doctor"], ["topics"], ["tables"], ["models"], ["agents"], ["replay", "--dry-run"], ["replay"]),
    *(["--json", "doctor"], ["--debug", "topics"], ["reset", "--yes"]),
)


def command(worker: Worker, *words: str) -> subprocess.CompletedProcess[str]:
    """`faust -A app WORDS` with the settings of a worker, told to tell all."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HOMUNCULUS_", "FAUST_", "KAFKA_"))}
    return subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app", *words],
        cwd=ROOT,
        env=inherited | worker.environment | {"PYTHONASYNCIODEBUG": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )


def posted(worker: Worker, path: str, body: bytes) -> int:
    """The status of a POST."""
    request = urllib.request.Request(f"{worker.url}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return int(response.status)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
async def test_every_client_comes_in_and_nothing_tells_the_secrets(secured: SecuredKafka, rig: Rig, way: str) -> None:
    secured.grant(await with_topics(rig))
    replaying = f"{application(rig)}-replay"
    secured.grant(
        [
            *(Right("WRITE", "topic", rig.topic(name)) for name in ("observations", "control")),
            Right("READ", "topic", rig.topic("dead-letters")),
            Right("READ", "group", replaying),
        ]
    )
    worker = rig.worker("a", arguments=["-l", "debug"], log_level="debug", **ways(secured)[way])
    worker.environment["PYTHONASYNCIODEBUG"] = "1"
    worker.start()
    rig.deploy()
    rig.sender().send(100)
    rig.publisher.send(rig.topic("observations"), b"s1", b"no observation")  # becomes a dead letter
    rig.wait_predictions()
    rig.wait_records("dead-letters", 1)
    assert_secret(Path(f"/proc/{worker.pid}/cmdline").read_text())
    assert posted(worker, "/models/tally", b'{"active": "1"}') == 202
    sent = command(worker, "send", rig.topic("observations"), "text")
    assert sent.returncode == 0, sent.stdout
    rig.wait_records("dead-letters", 2)
    rig.assert_exact()
    printed = [worker.log(None), sent.stdout]
    for words in COMMANDS:
        done = command(worker, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}"
        printed.append(done.stdout)
    for text in printed:
        assert_secret(text)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("wrong password", "doesn't let 'worker' in by PLAIN: check the user, its password"),
        ("wrong host", "certificate is not valid for 'localhost'"),
        ("unknown authority", "name the file of the authority that has signed it by ssl_cafile"),
        ("missing file", "ssl_cafile=/no/such.pem can't be read: No such file or directory"),
        ("missing password", "HOMUNCULUS_BROKER_PASSWORD_FILE is /no/such, which can't be read"),
    ],
)
def test_who_is_not_let_in_gets_a_sentence_and_a_status(secured: SecuredKafka, rig: Rig, why: str, told: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "wrong password": {},
        "wrong host": {"broker": secured.url().replace("127.0.0.1", "localhost")},
        "unknown authority": {"broker": secured.url().partition("?")[0]},
        "missing file": {"broker": secured.url(ssl_cafile="/no/such.pem")},
        "missing password": {"broker_password": None, "broker_password_file": "/no/such"},
    }
    settings = {"broker": secured.url(), "broker_password": "wrong-one", "log_level": "debug"} | given[why]
    worker = rig.worker("wrong", **settings).start()
    assert worker.wait(30) == 1
    printed = {"worker": worker.log(None)}
    for words in (["doctor"], ["topics"], ["tables"], ["models"], ["replay"], ["send", "observations", "x"]):
        done = command(worker, *words)
        assert done.returncode == 1, done.stdout
        printed[words[0]] = done.stdout
    for name, text in printed.items():
        assert text.count(told) == 1, f"{name}: {text}"
        assert "Traceback" not in text, f"{name}: {text}"
        assert "wrong-one" not in text


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_worker_without_one_of_its_rights_ends_with_a_sentence(
    secured: SecuredKafka, rig: Rig, tmp_path: Path
) -> None:
    granted = await with_topics(rig)
    secured.grant(granted)
    worker = rig.worker("a", **login(secured, tmp_path))
    for right in granted:
        secured.revoke(right)
        assert worker.start().wait(30) == 1, worker.log()
        assert missing(right) in worker.log(1)
        secured.grant([right])
    worker.start()
    rig.deploy()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (Right("WRITE", "topic", "predictions"), "doesn't let us at topic {prefix}predictions"),
        (Right("READ", "topic", "observations"), "doesn't let us at topic {prefix}observations"),
        (Right("WRITE", "topic", "{app}-", True), "doesn't let us at topic {prefix}{app}-"),
        (Right("READ", "group", "{app}"), "doesn't let us into the consumer group {app}"),
        (Right("WRITE", "transactional-id", "{app}-", True), "doesn't let us use the transactional id"),
    ],
)
async def test_a_right_that_is_taken_away_ends_the_worker(
    secured: SecuredKafka, rig: Rig, tmp_path: Path, lost: Right, told: str
) -> None:
    secured.grant(await with_topics(rig))
    worker = rig.worker("a", **login(secured, tmp_path)).start()
    rig.deploy()
    name = lost.name.format(app=application(rig))
    with rig.sender(rate=200):
        rig.wait_progress(100)
        secured.revoke(lost._replace(name=rig.topic(name) if lost.kind == "topic" else name))
        assert worker.wait(60) == 3, worker.log()
    assert told.format(app=application(rig), prefix=rig.prefix) in worker.log(None)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_worker_that_may_makes_its_topics_itself(secured: SecuredKafka, rig: Rig, tmp_path: Path) -> None:
    secured.grant(least(rig.prefix, application(rig)))
    worker = rig.worker("a", **login(secured, tmp_path)).start()
    assert worker.wait(30) == 1
    assert "grant CREATE on it or on the cluster, or create it yourself with 2 partitions" in worker.log(1)
    secured.grant([Right("CREATE", "topic", rig.prefix, True)])
    worker.start()
    rig.deploy()
    rig.sender().send(50)
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_password_that_is_changed_ends_the_worker_when_it_must_log_in_again(
    secured: SecuredKafka, rig: Rig, tmp_path: Path
) -> None:
    secured.grant(await with_topics(rig))
    worker = rig.worker("a", **login(secured, tmp_path, "SCRAM-SHA-512")).start()
    rig.deploy()
    with rig.sender(rate=200):
        rig.wait_progress(100)
        secured.set_password("another-one")
        try:
            secured.stop()
            secured.start(password="another-one")
            assert worker.wait(90) == 3, worker.log()
        finally:
            secured.set_password(PASSWORD)
    assert "doesn't let 'worker' in by SCRAM-SHA-512" in worker.log(None)
    assert_secret(worker.log(None))
