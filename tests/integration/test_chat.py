"""OpenAI's own client, and a person at a terminal, talk to a worker: whoever has the session answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from core.messages import Generation, Message
from core.topics import MESSAGES, REPLIES
from models.convert import lora
from models.folder import ModelFolder
from tests import babbler, node, talks
from tests.command import command
from tests.gguf import Form
from tests.kafka import Broker
from tests.peft import Peft
from tests.rig import Rig, rig_on
from tests.worker import Worker, until

TOKEN = "a secret of the workers"


@pytest.fixture(scope="module")
def rig(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two workers with a language model."""
    with rig_on(kafka, tmp_path_factory.mktemp("openai")) as rig:
        babbler.publish(rig.store, adapters=True)
        # Most of these are about what is computed: nobody is to be given what somebody else was told.
        rig.defaults = {"chat_threads": 1, "web_token": TOKEN, "chat_reuse": False}
        workers = [rig.worker(name).start() for name in "ab"]
        rig.control({"active": "1"}, model=babbler.NAME)
        for worker in workers:
            worker.wait_ready(60)
        yield rig


def client_of(worker: Worker) -> OpenAI:
    return OpenAI(base_url=f"{worker.url}/v1", api_key=TOKEN, max_retries=0, timeout=60)


@pytest.fixture
def client(rig: Rig) -> OpenAI:
    """Of the first worker."""
    return client_of(rig.running()[0])


def ask(client: OpenAI, *said: str, user: str, **more: object) -> tuple[str, int, int]:
    """The reply to the last; how many tokens its prompt had, and how many of them had been computed before."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "assistant", "content": text} if n % 2 else {"role": "user", "content": text}
        for n, text in enumerate(said)
    ]
    answer = client.chat.completions.create(model=babbler.NAME, messages=messages, user=user, max_tokens=30, **more)  # type: ignore[call-overload]
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].message.content, answer.usage.prompt_tokens, details.cached_tokens


def test_the_models_are_those_that_are_live(client: OpenAI) -> None:
    assert [(model.id, model.object) for model in client.models.list()] == [(babbler.NAME, "model")]


def test_a_conversation_computes_its_new_tokens_alone_and_a_fork_what_differs(client: OpenAI) -> None:
    first, prompt, cached = ask(client, "one", user="talker")
    assert cached == 0
    second, extended, cached = ask(client, "one", first, "two", user="talker")
    assert cached >= prompt
    _, _, cached = ask(client, "one", first, "two", second, "three", user="talker")
    assert cached >= extended
    _, _, forked = ask(client, "one", first, "another two", user="talker")
    assert prompt <= forked < extended
    again, _, edited = ask(client, "ONE", user="talker")
    assert edited < prompt
    assert again != first, "it follows from every token of its context"


def test_whoever_is_asked_says_the_same_and_names_who_answered(rig: Rig) -> None:
    routed = set()
    for n in range(8):
        told = {}
        for worker in rig.running():
            raw = client_of(worker).chat.completions.with_raw_response.create(
                model=babbler.NAME, messages=[{"role": "user", "content": "hello"}], user=f"user-{n}", max_tokens=10
            )
            told[raw.parse().choices[0].message.content] = raw.headers["X-Routed-To"].split("/")
            assert raw.headers["X-Session"] == f"user-{n}"
        assert len(told) == 1
        [(worker_name, slot)] = told.values()
        assert slot.isdigit()
        routed.add(worker_name)
    assert routed == {"a", "b"}


def test_a_stream_is_the_reply_in_parts_with_what_it_took_at_the_end(client: OpenAI) -> None:
    whole, prompt, _ = ask(client, "tell me", user="whole")
    stream = client.chat.completions.create(
        model=babbler.NAME,
        messages=[{"role": "user", "content": "tell me"}],
        user="streamed",
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in {"stop", "length"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == prompt
    assert len({chunk.id for chunk in chunks}) == 1


JAVASCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({baseURL: process.env.BASE, apiKey: process.env.TOKEN, maxRetries: 0});
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const asked = {model: models[0], max_tokens: 20, messages: [{role: "user", content: "tell me"}]};
const {data, response} = await client.chat.completions.create({...asked, user: "node-whole"}).withResponse();
let text = "", last = null;
const streamed = {...asked, user: "node-streamed", stream: true, stream_options: {include_usage: true}};
for await (const chunk of await client.chat.completions.create(streamed)) {
  text += chunk.choices[0]?.delta?.content ?? "";
  last = chunk;
}
let refused = null;
try { await client.chat.completions.create({...asked, model: "raven"}); } catch (error) { refused = error; }
console.log(JSON.stringify({
  models, whole: data.choices[0].message.content, finish: data.choices[0].finish_reason, usage: data.usage,
  routed: response.headers.get("x-routed-to"), text, last: last.usage,
  refused: refused instanceof OpenAI.NotFoundError && refused.code,
}));
"""


def test_openais_client_for_javascript_is_told_the_same(rig: Rig, client: OpenAI) -> None:
    told = json.loads(node.ran(JAVASCRIPT, BASE=f"{rig.running()[0].url}/v1", TOKEN=TOKEN))
    expected = client.chat.completions.create(
        model=babbler.NAME, messages=[{"role": "user", "content": "tell me"}], user="python-whole", max_tokens=20
    )
    assert told["models"] == [babbler.NAME]
    assert told["whole"] == told["text"] == expected.choices[0].message.content
    assert told["finish"] == expected.choices[0].finish_reason
    assert told["usage"]["prompt_tokens"] == told["last"]["prompt_tokens"] == expected.usage.prompt_tokens  # type: ignore[union-attr]
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert told["routed"].partition("/")[0] in {"a", "b"}
    assert told["refused"] == "model_not_found"


def test_a_named_session_goes_on_with_what_it_holds(client: OpenAI, rig: Rig) -> None:
    headers = {"X-Session": "kept"}
    for text in ("one", "two"):
        client.chat.completions.create(
            model=babbler.NAME,
            messages=[{"role": "user", "content": text}],
            max_tokens=10,
            extra_headers=headers,
        )
    turns = rig.running()[1].get("/tables/contexts/kept", token=TOKEN).json()["turns"]
    assert [turn["said"][0]["text"] for turn in turns] == ["one", "two"]


def test_an_idempotency_key_gets_the_same_answer_once_more(client: OpenAI) -> None:
    def once() -> object:
        return client.chat.completions.create(
            model=babbler.NAME,
            messages=[{"role": "user", "content": "hello"}],
            user="careful",
            max_tokens=10,
            extra_headers={"Idempotency-Key": "a key of mine"},
        )

    first, second = once(), once()
    assert first.id == second.id == "chatcmpl-a key of mine"  # type: ignore[attr-defined]
    assert first.choices == second.choices  # type: ignore[attr-defined]


def test_what_is_not_spoken_here_is_an_error_that_the_client_knows(client: OpenAI) -> None:
    hello: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.NotFoundError, match="raven"):
        client.chat.completions.create(model="raven", messages=hello)
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        client.chat.completions.create(model=babbler.NAME, messages=hello, n=2)
    with pytest.raises(openai.BadRequestError, match="no text"):
        client.chat.completions.create(model=babbler.NAME, messages=[{"role": "user", "content": " "}], stream=True)
    with pytest.raises(openai.BadRequestError, match="too long"):
        client.chat.completions.create(model=babbler.NAME, messages=[{"role": "user", "content": "x" * 60_000}])
    with pytest.raises(openai.BadRequestError, match="more than 1000000 bytes"):
        client.chat.completions.create(model=babbler.NAME, messages=[{"role": "user", "content": "x" * 1_100_000}])
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list()


def test_a_client_that_leaves_has_its_reply_stopped(client: OpenAI, rig: Rig) -> None:
    stream = client.chat.completions.create(
        model=babbler.NAME,
        messages=[{"role": "user", "content": "a long story"}],
        user="leaver",
        max_tokens=500,
        stream=True,
        stop=["never said"],
    )
    next(iter(stream))
    stream.close()
    rig.wait_records(MESSAGES.name, 1)

    def stopped() -> bool:
        reader = rig.reader(REPLIES.name)
        reader.catch_up()
        return any(one.json["session"] == "leaver" and one.json["final"] for one in reader.records)

    until(stopped, 30, what="the reply has an end")


def test_a_reply_keeps_to_a_schema(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model=babbler.NAME,
        messages=[{"role": "user", "content": "a number"}],
        user="strict",
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["n"] in {1, 2}


def test_a_person_at_a_terminal_goes_on_with_a_session(rig: Rig) -> None:
    ours = {"broker": rig.broker.url, "topic_prefix": rig.prefix, "app_id": f"{rig.prefix}app"}
    ours |= {"data_dir": str(rig.folder / "terminal"), "partitions": str(rig.partitions)}
    words = ["chat", "--session", "person", "--max-tokens", "12"]
    talk = command(*words, stdin="hello\n\nand again\n", **ours)
    assert talk.returncode == 0, talk.stderr
    turns = rig.running()[0].get("/tables/contexts/person", token=TOKEN).json()["turns"]
    assert [turn["said"][0]["text"] for turn in turns] == ["hello", "and again"]
    for turn in turns:
        assert turn["said"][1]["text"].strip() in talk.stdout
    once = command(*words, "--json", "once more", **ours)
    assert once.returncode == 0, once.stderr
    assert json.loads(once.stdout)["finish"] in {"stop", "length"}
    wrong = command(*words, "--model", "raven", "hello", **ours)
    assert wrong.returncode == 1
    assert "'raven' is not deployed" in wrong.stdout


def test_an_adapter_is_deployed_like_a_model_and_changes_the_messages_that_name_it(rig: Rig) -> None:
    base = ModelFolder.open(rig.store / babbler.NAME / "1", babbler.NAME, "1")
    peft = Peft(Form(kv_heads=babbler.KV_HEADS), 1).write(rig.folder / "peft")
    lora.convert(peft, base, rig.store, name="polite", version="1")
    rig.control({"active": "1"}, model="polite")
    until(lambda: all("polite" in live(worker) for worker in rig.running()), 60, what="the adapter is live")
    options = Generation(max_tokens=10)
    messages = [
        Message(id=f"{name}", session=f"adapted {name}", ts=talks.TS, text="hello", options=options, adapter=name)
        for name in ("polite", "rude")
    ]
    talks.publish(rig, messages)
    finals = {}

    def answered() -> bool:
        reader = rig.reader(REPLIES.name)
        reader.catch_up()
        finals.update({one.json["message_id"]: one.json for one in reader.records if one.json["final"]})
        return {"polite", "rude"} <= finals.keys()

    until(answered, 60, what="both are answered")
    assert (finals["polite"]["adapter"], finals["polite"]["model"]) == ("polite@1", babbler.NAME)
    assert (finals["rude"]["finish"], finals["rude"]["error"]) == ("refused", "AdapterError")


def live(worker: Worker) -> list[str]:
    """Models that answer on a worker."""
    told = worker.get("/models", token=TOKEN).json()["models"]
    return [name for name, status in told.items() if status.get("version")]
