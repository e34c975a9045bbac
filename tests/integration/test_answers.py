"""A worker answers from documents, over HTTP and over topics; what was deleted is cited no more."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

from agents.grounding import UNKNOWN
from tests import babbler
from tests.integration.test_knowledge import embedder, has, names, put, wait
from tests.kafka import EMBEDDED_LATER, Broker
from tests.rig import rig_on
from tests.worker import Worker, until

SOON_S = 10.0
"""Within which nobody is told any more of what was deleted; counted from when the broker has the record. Tests share
their machine: alone it takes .2 s, as the demo shows."""


def ask(
    worker: Worker, text: str, session: str, tenant: str | None = None, once: str | None = None, **more: Any
) -> dict[str, Any]:
    """An answer in OpenAI's form. once: an idempotency key."""
    client = OpenAI(base_url=f"{worker.url}/v1", api_key="-", max_retries=0, timeout=60)
    headers = {"X-Tenant": tenant} if tenant else {}
    headers |= {"Idempotency-Key": once} if once else {}
    answer = client.chat.completions.create(
        model=babbler.NAME,
        messages=[{"role": "user", "content": text}],
        user=session,
        max_tokens=20,
        extra_headers=headers,
        extra_body={"knowledge": True, **more},
    )
    told: dict[str, Any] = json.loads(answer.to_json())
    return told | {"text": told["choices"][0]["message"]["content"]}


@EMBEDDED_LATER
def test_answers_name_their_source_and_follow_it(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        babbler.publish(rig.store)
        rig.defaults = {"chat_threads": 1, "chat_relevance": 1.2}
        worker = rig.worker("a").start().wait_log("is open")
        rig.control({"active": "1"}, model=babbler.NAME)
        embedder(rig)
        worker.wait_ready(60)
        put(rig, "cats", "# Cats\n\nThe cat sleeps at night.", title="Of cats", tenant="acme")
        wait([worker], "it is found", lambda one: has({"vectors": 1, "pending": 0}, one))

        first = ask(worker, "the cat sleeps at night?", "ann", "acme")
        assert first["source"] == "model"
        [cited] = first["citations"]
        assert (cited["document"], cited["title"], cited["number"]) == ("cats", "Of cats", 1)
        again = ask(worker, "The cat sleeps at night?", "ann", "acme")
        assert (again["source"], again["text"], again["citations"]) == ("cache", first["text"], first["citations"])
        kept = ask(worker, "the cat sleeps at night?", "ann", "acme", once="a key")
        assert kept["citations"] == first["citations"]
        for tenant, once in ((None, None), ("evil", None), ("evil", "a key")):
            told = ask(worker, "the cat sleeps at night?", "ann", tenant, once)
            assert (told["text"], told["citations"], told["source"]) == (UNKNOWN, [], "rule")

        put(rig, "cats", "# Cats\n\nThe cat barks at night.", title="Of cats", tenant="acme")
        wait([worker], "the change is found", lambda one: names(one, "cat barks", tenant="acme") == {"cats"})
        until(
            lambda: _passage(ask(worker, "the cat barks at night?", "ann", "acme")) not in (None, cited["passage"]), 10
        )

        put(rig, "cats", None)
        deleted = time.monotonic()
        while ask(worker, "the cat barks at night?", "ann", "acme")["citations"]:
            assert time.monotonic() - deleted < SOON_S
        assert ask(worker, "the cat barks at night?", "bob", "acme")["text"] == UNKNOWN
        again = ask(worker, "the cat sleeps at night?", "ann", "acme", once="a key")
        assert (again["text"], again["citations"]) == (UNKNOWN, []), "nor to whoever asks again"


def _passage(told: dict[str, Any]) -> str | None:
    return told["citations"][0]["passage"] if told["citations"] else None
