"""Rules that decide before any model is asked: what people write onto `rules`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from core.messages import Answerer, Window

Name = Annotated[str, Field(min_length=1, max_length=100)]
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Verdict = Literal["pass", "stop"]
"""pass: the model is asked. stop: it isn't."""
Condition = Text | dict[Literal["and", "or", "not"], Any]
"""An expression, or {"and": [...]}, {"or": [...]}, {"not": ...} of conditions."""
DEEPEST = 10
"""Conditions within conditions."""
MOST = 100
"""Parts of one condition, and rules of a set."""

_texts: TypeAdapter[str] = TypeAdapter(Text)


def joined(condition: Any, depth: int = 0) -> str:
    """A condition as one expression. Raises ValueError for what is none."""
    if isinstance(condition, str):
        return _texts.validate_python(condition)
    if depth > DEEPEST:
        raise ValueError(f"conditions are nested more than {DEEPEST} deep")
    if not isinstance(condition, dict) or len(condition) != 1:
        raise ValueError('a condition is a text, or {"and": [...]}, {"or": [...]} or {"not": ...}')
    [(word, parts)] = condition.items()
    if word == "not":
        return f"!({joined(parts, depth + 1)})"
    if word not in {"and", "or"} or not isinstance(parts, list) or not 0 < len(parts) <= MOST:
        raise ValueError(f"{word!r} is none of and, or, not, or doesn't have one to {MOST} conditions in a list")
    sign = " && " if word == "and" else " || "
    return sign.join(f"({joined(part, depth + 1)})" for part in parts)


class Rule(BaseModel):
    """One of a set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    when: Condition
    """In CEL; `${user.tier}`, `120s`, and, or, not are taken as well (docs/chat.md)."""
    then: Verdict = "pass"
    reply: Text | None = None
    """To a message that it stops."""
    ctx_ttl: Annotated[float, Field(gt=0, le=3.2e9)] | None = None
    """Seconds of event time that the context of a message's session lives from then on."""
    window: Window | None = None
    """What that context keeps from then on when it gets too long;"""
    window_tokens: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """and how many tokens it may have."""
    answer: Answerer | None = None
    """Who answers a message that is answered from what is known."""
    budget_ms: Annotated[float, Field(gt=0, le=1000)] = 80
    """What it may take: one that takes longer doesn't count."""

    @field_validator("when")
    @classmethod
    def _is_a_condition(cls, when: Any) -> Any:
        joined(when)
        return when

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of a message that it sets: who answers it, and what becomes of the session's context."""
        told = {
            "ctx_ttl": self.ctx_ttl,
            "window": self.window,
            "window_tokens": self.window_tokens,
            "answer": self.answer,
        }
        return {name: value for name, value in told.items() if value is not None}


class RuleSet(BaseModel):
    """A record of `rules`, keyed by the set's name. The first rule whose condition holds decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topics: Annotated[tuple[Literal["messages", "observations"], ...], Field(min_length=1)] = ("messages",)
    """What it is asked about."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=MOST)] = ()
    otherwise: Verdict = "pass"
    """Where no condition holds."""
    reply: Text = "This was not put to the model."
    """To messages that are stopped, where the rule has none of its own."""
    levels: dict[Name, tuple[Name, ...]] = {}
    """Orders, lowest first, for at_least(): {"tier": ["BASIC", "VIP1", "VIP2"]}."""
    dry_run: bool = False
    """Counts what it would do, and stops nothing."""

    @model_validator(mode="after")
    def _names_differ(self) -> RuleSet:
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError("two rules have one name")
        return self
