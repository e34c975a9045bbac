"""`faust -A app reset --from`: the input again from a time on, with nothing left of what was made of it before."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from cli.past import past
from core.errors import UsageError
from tests.rig import Rig
from tests.shop import Shop, wait_committed
from tests.worker import until


@pytest.fixture
def shop(rig: Rig) -> Shop:
    return Shop(rig)


@pytest.mark.long
def test_reset_from_a_time_reads_the_input_again_from_there(shop: Shop) -> None:
    worker = shop.worker()
    shop.order(500)
    shop.wait_exact()
    moment = datetime.now(UTC)
    later = moment + timedelta(milliseconds=2)  # records have their time in ms
    until(lambda: datetime.now(UTC) > later, 5, what="the next record is of a later time")
    shop.totals.clear()
    shop.order(300)
    wait_committed(shop, worker)
    said = shop.command("reset", "--from", moment.isoformat(), "--yes")
    assert said.returncode == 1
    assert "stop every worker first" in said.stderr
    assert worker.terminate() == 0
    said = shop.command("reset", "--from", moment.isoformat(), "--yes", "--json")
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert sum(row["to"] - row["from"] for row in document["input"] if row["topic"].endswith("-orders")) >= 300
    assert document["deleted"] >= 40
    worker.start()
    shop.wait_exact()


@pytest.mark.long
def test_reset_from_a_time_keeps_what_is_deployed(rig: Rig) -> None:
    worker = rig.worker("a", session_timeout=3).start()
    rig.deploy()
    sender = rig.sender(sessions=10).send(100)
    rig.wait_predictions()
    assert worker.terminate() == 0
    shop = Shop(rig, app="app")
    said = shop.command("reset", "--from", "2020-01-01T00:00Z", "--yes", "--json")
    assert said.returncode == 0, said.stderr
    sender.send(50)
    worker.start().wait_ready()
    rig.wait_predictions()
    rig.wait_records("predictions", 250)
    ids = Counter(record.json["id"] for record in rig.reader("predictions").records)
    assert sorted(ids.values()) == [1] * 50 + [2] * 100, "the repeated ones don't have the same ids"
    again = {r.json["id"]: r.json["scores"] for r in rig.reader("predictions").records}
    assert all(r.json["scores"] == again[r.json["id"]] for r in rig.reader("predictions").records)
    assert worker.terminate() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "like 2026-01-31T12:00Z"),
        ("2026-01-31T12:00", "time zone"),
        ("2100-01-01T00:00Z", "still to come"),
    ],
)
def test_a_time_that_is_none_is_told(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        past(text, "--from")
