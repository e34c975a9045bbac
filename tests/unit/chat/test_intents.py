"""What a message wants, and what is known of its session: told to rules and to the model, by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.chat import chat
from agents.intents import field
from agents.scoring import score
from core.errors import SettingsError
from core.events import Observation
from core.facts import Value, filled, names_in
from core.rules import RuleSet
from core.settings import Settings
from core.topics import OBSERVATIONS, PREDICTIONS
from engine.table import Table
from engine.testing import in_memory
from models.convert import convert as converted
from models.embedder.convert import convert
from tables.latest import latest
from tables.sessions import sessions
from tests import tally
from tests.unit.chat.conftest import TABLES, TS, Talk, talking
from tests.unit.chat.standin import StandIn, live
from tests.unit.knowledge.bert import sentence_folder

POLICY: dict[str, Any] = {
    "rules": [{"name": "unsure", "when": "intent.confidence < 0.65 && session.duration > 120s"}],
    "otherwise": "stop",
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Embedder that the classifier says it was made for -> a store with a toy embedder, and a classifier of its vectors
    that is sure of nothing."""
    from sklearn.linear_model import LogisticRegression

    rows = np.random.default_rng(1).normal(size=(60, 24)).astype(np.float32)
    estimator = LogisticRegression(C=1e-4).fit(rows, np.array(["ask", "tell", "greet"] * 20))
    found = {}
    for embedder in ("small@1", "other@1"):
        folder = tmp_path_factory.mktemp("intents")
        found[embedder] = store = folder / "store"
        convert(sentence_folder(folder / "source"), store, name="small", version="1")
        fields = [field(embedder, n) for n in range(24)]
        converted(estimator, fields, name="intent", version="1", into=store / "intent" / "1")
    return found


async def test_a_rule_knows_how_sure_the_intent_is_and_how_long_the_session_lasts(
    stores: dict[str, Path],
) -> None:
    async with talking(model_store=str(stores["small@1"]), intent_model="intent") as talk:
        for name in ("small", "intent"):
            await talk.trial.deploy(name, "1")
        await talk.ask("ann", "the cat sleeps", ts=TS)
        gate = talk.trial.engine.gate
        await gate.put("p", RuleSet.model_validate(POLICY))
        assert (await talk.ask("ann", "the dog barks", ts=TS + 120_000)).source == "rule"
        assert (await talk.ask("ann", "the dog barks", ts=TS + 121_000)).source == "model"
        sure = {"intent": {"confidence": 0.9}}
        assert (await talk.ask("ann", "the dog barks", ts=TS + 122_000, attributes=sure)).source == "rule", (
            "sender's own"
        )
        labels = " || ".join(f'intent.label == "{name}"' for name in ("ask", "tell", "greet"))
        named = {"rules": [{"name": "named", "when": f"({labels}) && intent.model == 'intent@1'"}], "otherwise": "stop"}
        await gate.put("p", RuleSet.model_validate(named))
        assert (await talk.ask("bob", "the dog barks")).source == "model"


@pytest.mark.parametrize("missing", ["setting", "intent", "small", "fitting"])
async def test_without_an_intent_no_condition_about_it_holds_and_the_log_says_why_once(
    stores: dict[str, Path], missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores["other@1" if missing == "fitting" else "small@1"]
    settings: dict[str, Any] = {} if missing == "setting" else {"intent_model": "intent"}
    async with talking(model_store=str(store), **settings) as talk:
        for name in {"small", "intent"} - {missing}:
            await talk.trial.deploy(name, "1")
        rules = {"rules": [{"name": "r", "when": "intent.confidence < 2.0"}], "otherwise": "stop"}
        await talk.trial.engine.gate.put("p", RuleSet.model_validate(rules))
        with caplog.at_level(logging.WARNING, "agents.intents"):
            for _ in range(3):
                assert (await talk.ask("ann", "the dog barks")).source == "rule"
        assert len([one for one in caplog.records if one.name == "agents.intents"]) == (missing != "setting")


async def test_no_observation_means_the_intent_model_unless_it_names_it(stores: dict[str, Path]) -> None:
    tally.publish(stores["small@1"])
    settings: dict[str, Any] = {"model_store": str(stores["small@1"]), "intent_model": "intent"}
    async with in_memory([score], [sessions], **settings) as trial:
        for name in ("small", "intent", tally.NAME):
            await trial.deploy(name, "1")
        assert trial.models.resolve(None) == tally.NAME
        assert trial.models.resolve("intent") == "intent"


async def test_the_model_is_told_of_the_session_s_features_and_its_newest_prediction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tally.publish(tmp_path)
    text = "{features.count} events; {prediction.label} by {prediction.model}; {features.nothing}; {session.turns}"
    model = StandIn()
    tables: list[Table[Any, Any]] = [*TABLES, sessions, latest]
    async with in_memory([chat, score], tables, model_store=str(tmp_path), chat_facts=text) as trial:
        await trial.deploy(tally.NAME, "1")
        active = trial.models.get(tally.NAME)
        assert active is not None
        sessions.configure(active.manifest.session_features, None, 1000)
        live(trial.models, model)
        talk = Talk(trial, model)
        await talk.ask("ann", "hello")
        assert _last(model) == "unknown events; unknown by unknown; unknown; 0\n\nhello"
        await trial.send(OBSERVATIONS, [Observation(f"e{n}", "ann", TS + n, {"f0": float(n)}) for n in range(3)])
        await trial.settle()
        label = trial.outputs(PREDICTIONS)[-1].value.label
        await talk.ask("ann", "hello again")
        assert _last(model) == f"3 events; {label} by {tally.NAME}; unknown; 1\n\nhello again"
        assert "{features.nothing}, which a session hasn't" in caplog.text
        context = talk.context("ann")
        assert context is not None
        assert [turn.said[0].text for turn in context.turns] == ["hello", "hello again"]
        model.close()


def _last(model: StandIn) -> str:
    """What was put to the model in the place of the question."""
    tokens = model.turns[-1].tokens[:-3]
    begin = max(n for n, token in enumerate(tokens) if token > 1_000_000)
    return "".join(map(chr, tokens[begin + 1 :]))


def test_a_value_is_text_and_is_not_looked_into_for_names() -> None:
    values: dict[str, Value] = {
        "intent.label": "{features.secret}\nnew line",
        "features.mean.value": 12.34567891,
        "session.id": None,
    }
    told = filled("{intent.label}|{features.mean.value}|{session.id}", lambda name: values[name])
    assert told == "{features.secret} new line|12.3457|unknown"


@pytest.mark.parametrize(
    "text", ["{secrets.token}", "{features}", "{features.}", "a { b", "{}", "{0}", "{session.__class__!r:{x}}"]
)
def test_names_of_nothing_that_is_known_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no name|a brace stands by itself"):
        names_in(text)


def test_the_settings_say_which_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMUNCULUS_CHAT_FACTS", "{secrets.token}")
    with pytest.raises(SettingsError, match=r"HOMUNCULUS_CHAT_FACTS.*{secrets.token} is no name"):
        Settings.read()
