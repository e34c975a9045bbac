"""Windows, timers and patterns on Apache Kafka: through kills and rebalances they come to what a recount says."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.rig import Rig
from tests.stream import EPOCH_MS
from tests.timely.app import Click
from tests.worker import Worker, tails, until

APP: Final = "tests.timely.app"
LATENESS_MS: Final = 2_000
KINDS: Final = ("question", "answer")


class Clicks:
    """Clicks of 30 sessions, each held up on its way by at most the allowed lateness."""

    def __init__(self, rig: Rig, count: int) -> None:
        chance = random.Random(count)
        ts = EPOCH_MS
        held: list[tuple[int, Click]] = []
        for number in range(count):
            ts += chance.randrange(20)
            click = Click(f"c{number}", f"s{chance.randrange(30)}", ts, chance.choice(KINDS))
            held.append((ts + chance.randrange(LATENESS_MS + 1), click))
        held.sort(key=lambda one: one[0])
        self.arriving = [click for _, click in held]
        self.ordered = sorted(self.arriving, key=lambda click: (click.ts, click.kind == "answer"))
        self.rig = rig
        self.sent = 0

    def send(self, count: int) -> None:
        """The next so many."""
        for click in self.arriving[self.sent : self.sent + count]:
            self._send(click)
        self.sent += count
        until(self.rig.publisher.delivered, 30, what="the clicks are there")

    def end(self) -> None:
        """What is sent is all: a later click in every partition ends all that is open."""
        assert self.sent >= len(self.arriving)
        for number in range(64):
            self._send(Click(f"end{number}", f"end{number}", EPOCH_MS + 3_600_000, "end"))
        until(self.rig.publisher.delivered, 30, what="the end is there")

    def _send(self, click: Click) -> None:
        self.rig.publisher.send(self.rig.topic("clicks"), click.session.encode(), msgspec.json.encode(click))

    def recount(self) -> Counter[str]:
        """What must be heard, by hand."""
        heard: list[Any] = []
        seconds: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        recent: Counter[tuple[str, int]] = Counter()
        for click in self.ordered:
            name = f"{click.session}/{click.id}"
            heard += [["reminder", name, click.ts + 700], ["alarm", name]]
            seconds[click.session, click.ts // 1000 * 1000].append(click.id)
            last = click.ts // 250 * 250
            recent.update((click.session, start) for start in (last - 750, last - 500, last - 250, last))
        heard += [["per-second", key, start, start + 1000, sorted(ids)] for (key, start), ids in seconds.items()]
        heard += [["recent", key, start, start + 1000, count] for (key, start), count in recent.items()]
        for session in {click.session for click in self.ordered}:
            heard += self._visits(session) + self._answers(session)
        return Counter(map(json.dumps, heard))

    def _visits(self, session: str) -> list[Any]:
        visits: list[list[int]] = []
        for click in self.ordered:
            if click.session == session:
                if visits and click.ts < visits[-1][1] + 300:
                    visits[-1][1:] = [click.ts, visits[-1][2] + 1]
                else:
                    visits.append([click.ts, click.ts, 1])
        return [["visits", session, first, last + 300, count] for first, last, count in visits]

    def _answers(self, session: str) -> list[Any]:
        found: list[Any] = []
        open_questions: list[Click] = []
        own = [click for click in self.ordered if click.session == session]
        for click in sorted(own, key=lambda click: (click.ts, click.kind == "answer", json.dumps(click.id))):
            if click.kind == "question":
                open_questions.append(click)
            elif near := [question for question in open_questions if question.ts >= click.ts - 400]:
                open_questions.remove(near[-1])
                found.append(["answered", near[-1].id, click.id])
        return found + [["unanswered", question.id] for question in open_questions]


def heard(rig: Rig) -> Counter[str]:
    reader = rig.reader("heard")
    reader.catch_up()
    return Counter(json.dumps(record.json) for record in reader.records)


def assert_as_recounted(rig: Rig, clicks: Clicks, workers: list[Worker]) -> None:
    expected = clicks.recount()
    until(lambda: heard(rig).total() >= expected.total(), 60, what="all is heard", alive=workers)
    tables = ("per-second", "recent", "visits", "reminders", "alarms", "questions")
    until(lambda: not any(left(workers, table) for table in tables), 20, what="nothing is left", alive=workers)
    for worker in workers:
        assert worker.terminate() == 0, tails([worker])
    assert heard(rig) == expected
    for topic in ("late", "dead-letters"):
        assert rig.reader(topic).catch_up() == 0


def left(workers: list[Worker], table: str) -> list[Any]:
    return [item for worker in workers for item in worker.get(f"/tables/{table}").json()["items"]]


def test_they_are_exact_through_a_kill(rig: Rig) -> None:
    clicks = Clicks(rig, 800)
    worker = rig.worker("a", app=APP, allowed_lateness=LATENESS_MS / 1e3).start().wait_log("is open")
    clicks.send(600)
    rig.wait_records("heard", 500)
    worker.kill()
    shutil.rmtree(Path(worker.environment["HOMUNCULUS_DATA_DIR"]))
    worker.start()
    clicks.send(200)
    clicks.end()
    assert_as_recounted(rig, clicks, [worker])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_they_are_exact_through_kills_and_rebalances(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    clicks = Clicks(rig, 6000)
    workers = [rig.worker(name, app=APP, allowed_lateness=LATENESS_MS / 1e3) for name in "ab"]
    workers[0].start().wait_log("is open")
    for turn in range(6):
        clicks.send(1000)
        rig.wait_records("heard", heard(rig).total() + chance.randrange(1, 500))
        one = workers[turn % 2]
        if not one.running:
            one.start()
        elif chance.random() < 0.7:
            one.kill()
            one.start()
        else:
            assert one.terminate() == 0, tails([one])
            one.start()
    clicks.end()
    assert_as_recounted(rig, clicks, workers)
