"""What rules stop is answered by the worker itself, and costs no model."""

from __future__ import annotations

from typing import Any

import pytest

from agents.scoring import score
from core.events import Observation
from core.rules import RuleSet
from core.topics import OBSERVATIONS, PREDICTIONS
from engine.testing import in_memory
from tables.sessions import sessions
from tests import tally
from tests.unit.chat.conftest import TS, talking

POLICY: dict[str, Any] = {
    "rules": [
        {"name": "admins", "when": 'event.type == "DELETE" && user.role == "ADMIN"'},
        {"name": "unsure", "when": "intent.confidence < 0.65 and session.duration > 120s", "ctx_ttl": 60},
        {"name": "spam", "when": 'event.text.contains("buy now")', "then": "stop", "reply": "No, thanks."},
    ],
    "otherwise": "stop",
    "reply": "A person will look at it.",
}


async def test_only_what_a_rule_lets_pass_is_put_to_the_model() -> None:
    async with talking() as talk:
        await talk.trial.engine.gate.put("llm_trigger_policy", RuleSet.model_validate(POLICY))
        told = await talk.ask("ann", "hello")
        assert (told.source, told.text, told.finish) == ("rule", "A person will look at it.", "stop")
        assert told.why == "no rule lets it pass"
        told = await talk.ask("ann", "buy now!")
        assert (told.text, told.why) == ("No, thanks.", "rule 'spam'")
        assert talk.model.turns == []
        attributes = {"event": {"type": "DELETE"}, "user": {"role": "ADMIN"}}
        asked = await talk.ask("ann", "remove it", attributes=attributes)
        assert asked.source == "model"
        assert asked.text.startswith("2 said"), "what was stopped isn't part of the talk"
        counts = talk.trial.engine.gate.counts
        assert {(rule, did): count for (_, rule, did), count in counts.items()} == {
            ("otherwise", "stop"): 1,
            ("spam", "stop"): 1,
            ("admins", "pass"): 1,
        }


async def test_a_rule_knows_how_long_the_session_lasts_and_how_long_it_is_to_live() -> None:
    async with talking() as talk:
        await talk.ask("ann", "hello", ts=TS)
        await talk.trial.engine.gate.put("llm_trigger_policy", RuleSet.model_validate(POLICY))
        unsure = {"intent": {"confidence": 0.5}}
        early = await talk.ask("ann", "what?", ts=TS + 120_000, attributes=unsure)
        assert early.source == "rule"
        late = await talk.ask("ann", "what?", ts=TS + 121_000, attributes=unsure)
        assert late.source == "model"
        context = talk.context("ann")
        assert context is not None
        assert context.ttl_ms == 60_000


async def test_rules_are_swapped_while_messages_come() -> None:
    async with talking() as talk:
        gate = talk.trial.engine.gate
        for n in range(6):
            await gate.put("p", RuleSet(otherwise="stop" if n % 2 else "pass"))
            assert (await talk.ask("ann", f"message {n}")).source == ("rule" if n % 2 else "model")


async def test_observations_that_are_stopped_are_not_scored(tmp_path: Any) -> None:
    tally.publish(tmp_path)
    async with in_memory([score], [sessions], model_store=str(tmp_path)) as trial:
        await trial.deploy(tally.NAME, "1")
        manifest = trial.models.get(tally.NAME)
        assert manifest is not None
        sessions.configure(manifest.manifest.session_features, None, 1000)
        rules = {
            "topics": ["observations"],
            "rules": [{"name": "large", "when": "features.f0 >= 2 && at_least(user.tier, 'VIP2')"}],
            "levels": {"tier": ["BASIC", "VIP1", "VIP2"]},
            "otherwise": "stop",
        }
        await trial.engine.gate.put("score_policy", RuleSet.model_validate(rules))
        events = [
            Observation(f"e{n}", "ann", TS + n, {"f0": float(n % 4)}, attributes={"user": {"tier": tier}})
            for n, tier in enumerate(["VIP2"] * 4 + ["BASIC"] * 4)
        ]
        await trial.send(OBSERVATIONS, events)
        await trial.settle()
        assert [one.value.event_id for one in trial.outputs(PREDICTIONS)] == ["e2", "e3"]
        assert trial.positions()["observations"] == 8
        await trial.send(OBSERVATIONS, events[:2])
        await trial.settle()
        assert trial.positions()["observations"] == 10, "nothing of a batch may be left"


@pytest.mark.parametrize(
    "attributes", [{"event": 5}, {"user": []}, {"session": None}, {"intent": {"confidence": "no"}}]
)
async def test_odd_attributes_stop_nobody(attributes: dict[str, Any]) -> None:
    async with talking() as talk:
        await talk.trial.engine.gate.put("p", RuleSet.model_validate(POLICY))
        assert (await talk.ask("ann", "hello", attributes=attributes)).finish == "stop"
