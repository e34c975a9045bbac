"""The worker that has the session dies while a client of another one listens: the stream goes on."""

from __future__ import annotations

import json
import subprocess

import pytest
from openai import OpenAI

from tests import babbler
from tests.rig import Rig
from tests.worker import Worker

HELLO = [{"role": "user", "content": "tell me a long story"}]


def workers(rig: Rig) -> tuple[Worker, Worker]:
    """Two with a language model that takes its time: each part waits for its commit."""
    babbler.publish(rig.store)
    rig.defaults = {"chat_threads": 1}
    first, second = (rig.worker(name).start() for name in "ab")
    rig.control({"active": "1"}, model=babbler.NAME)
    for worker in (first, second):
        worker.wait_ready(60)
    return first, second


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stream_goes_on_when_its_owner_dies(rig: Rig) -> None:
    asked, other = workers(rig)
    client = OpenAI(base_url=f"{asked.url}/v1", api_key="-", max_retries=0, timeout=120)

    def routed(user: str) -> str:
        raw = client.chat.completions.with_raw_response.create(
            model=babbler.NAME, messages=[{"role": "user", "content": "hello"}], user=user, max_tokens=1
        )
        return raw.headers["X-Routed-To"].partition("/")[0]

    user = next(name for name in (f"user-{n}" for n in range(20)) if routed(name) == other.name)
    schema: dict[str, object] = {"type": "object", "properties": {"x": {"type": "string", "minLength": 600}}}
    schema["required"] = ["x"]
    stream = client.chat.completions.create(
        model=babbler.NAME,
        messages=[{"role": "user", "content": "tell me a long story"}],
        user=user,
        max_tokens=500,
        stream=True,
        response_format={"type": "json_schema", "json_schema": {"name": "long", "schema": schema}},
    )
    text, killed = "", False
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if not killed and len(text) > 5:
            other.kill()
            killed = True
    assert killed
    final = next(one.json for one in rig.reader("replies").read_out() if one.json["final"] and one.json["text"] == text)
    assert final["session"] == user
    assert final["usage"].get("resumed_tokens", 0) > 0, "the survivor went on where the dead one was"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_curl_understands_the_stream_as_well(rig: Rig) -> None:
    asked, _ = workers(rig)
    body = {"model": babbler.NAME, "messages": HELLO, "stream": True, "max_tokens": 10, "user": "curl"}
    done = subprocess.run(
        [
            "curl",
            "-sN",
            "-H",
            "Content-Type: application/json",
            "-d",
            json.dumps(body),
            f"{asked.url}/v1/chat/completions",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] in {"stop", "length"}
