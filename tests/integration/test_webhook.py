"""Alerts reach a webhook, whatever it has to say to them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agents.webhook import key_of, signature
from tests import tally
from tests.rig import Rig
from tests.stream import group_offsets
from tests.worker import until

SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"


class Receiver:
    """The other side: answers with the next of its statuses, and keeps what it took."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.refused: list[bytes] = []
        self.url = ""

    def titles(self) -> list[str]:
        """Of the alerts that it took."""
        return [json.loads(body)["title"] for _, body in self.taken]

    def tried(self, word: str) -> int:
        """Attempts that it did not take of alerts with this word."""
        return sum(word.encode() in body for body in self.refused)


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.statuses.pop(0) if found.statuses else 204
            if status < 300:
                found.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            else:
                found.refused.append(body)
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_alerts_are_posted_signed_until_the_other_side_has_them(rig: Rig) -> None:
    with receiver() as hook:
        tally.publish(rig.store, "1")
        worker = rig.worker("a", alert_webhook=hook.url, alert_secret=SECRET).start()
        rig.deploy("1")
        group, topic = f"{rig.prefix}app-webhook", rig.topic("alerts")
        until(
            lambda: len(group_offsets(rig.broker.bootstrap, group, topic)) == rig.partitions,
            30,
            what="the webhook's group has begun",
            alive=[worker],
        )
        hook.statuses = [503, 429, 302]
        for version in ("first", "second"):
            rig.control({"active": version})
            rig.wait_records("alerts", 1 if version == "first" else 2)
        rig.control({"active": "third"})
        until(lambda: any("third" in title for title in hook.titles()), 60, what="the last is there", alive=[worker])
        assert hook.tried("first") == 3, "503 and 429 are tried again, 302 is a refusal for good"
        assert [title.split()[0] for title in hook.titles()] == ["tally@second", "tally@third"]
        for headers, body in hook.taken:
            made = signature(headers["webhook-id"], body, key_of(SECRET), int(headers["webhook-timestamp"]))
            assert headers["webhook-signature"] == made
            assert headers["content-type"] == "application/json"

        worker.kill()
        rig.publisher.send(rig.topic("alerts"), b"x", b"garbage")
        rig.control({"active": "fourth"})
        worker.start().wait_ready()
        until(lambda: any("fourth" in title for title in hook.titles()), 60, what="the fourth", alive=[worker])
        names = Counter(headers["webhook-id"] for headers, _ in hook.taken)
        assert len(names) == len({json.loads(body)["id"] for _, body in hook.taken}) == 3
        worker.wait_log("is no alert")
        assert "plJ3nmyCDGBKInavdOK15jsl" not in worker.log()


@pytest.mark.parametrize("url", ["ftp://there/x", "no url"])
def test_a_webhook_that_is_none_is_said_at_the_start(rig: Rig, url: str) -> None:
    worker = rig.worker("a", alert_webhook=url).start()
    assert worker.wait(30) == 1
    assert "HOMUNCULUS_ALERT_WEBHOOK" in worker.log()
