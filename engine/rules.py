"""Rule sets, compiled once: expressions in CEL, which can neither loop for ever nor reach anything but what they are
told.

CEL: https://github.com/google/cel-spec; evaluated in Rust by common-expression-language. Measured on this project's
machine: docs/decisions.md.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from core.errors import RequestRefusedError
from core.rules import Rule, RuleSet, Verdict, joined

if TYPE_CHECKING:
    from cel import Program

log = logging.getLogger(__name__)

LONGEST: Final = 4000
"""Characters of an expression."""
DEEPEST: Final = 60
"""Brackets within brackets: its parser is recursive."""
LOOPS: Final = 2
"""Macros over lists in one expression: each multiplies what the ones before it take."""
OVERRUNS: Final = 3
"""Times in a row that a rule may take longer than its budget before it isn't asked any more."""
UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
WORDS: Final = {"and": "&&", "or": "||", "not": "!"}

_STRING: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_FIELD: Final = re.compile(r"\$\{\s*([A-Za-z_][\w.]*)\s*\}")
_SPAN: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(ms|s|m|h|d)\b")
_WORD: Final = re.compile(r"(?<![\w.])(and|or|not)(?!\w)")
_COMPARED: Final = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)\s*(>=|<=|>|<)\s*$")
"""A field and a sign, right before a text."""
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")


class Judgement(NamedTuple):
    """What a set says of a record."""

    verdict: Verdict
    rule: str | None
    """Whose condition held; None: none did."""
    reply: str
    changes: Mapping[str, Any]
    """Fields of the message that it sets."""


def written(expression: str, levels: frozenset[str] = frozenset()) -> str:
    """An expression as people write it, in CEL: ${a.b} is a.b, 120s is its seconds, and, or, not are signs; texts in
    quotes stay as they are. levels: names that have an order; a field that is compared with one of them is compared by
    that order. Raises RequestRefusedError for one that is too long or too deep."""
    parts = _STRING.split(expression)
    for i in range(0, len(parts), 2):
        part = _FIELD.sub(r"\1", parts[i])
        part = _SPAN.sub(lambda found: repr(float(found[1]) * UNITS[found[2]]), part)
        parts[i] = _WORD.sub(lambda found: WORDS[found[1]], part)
    for i in range(1, len(parts), 2):
        level = parts[i]
        if level[1:-1] in levels:
            parts[i - 1], ranked = _COMPARED.subn(rf"rank(\1, {level}) \2 ", parts[i - 1])
            parts[i] = f"rank({level}, {level})" if ranked else level
    text = "".join(parts)
    plain = "".join(parts[::2])
    if len(text) > LONGEST:
        raise RequestRefusedError(f"an expression has {len(text)} characters; {LONGEST} are taken")
    depth = deepest = 0
    for sign in plain:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST or plain.count("!!") > DEEPEST:
        raise RequestRefusedError(f"an expression has brackets {deepest} deep; {DEEPEST} are taken")
    if len(_LOOP.findall(plain)) > LOOPS:
        raise RequestRefusedError(f"an expression goes over lists more than {LOOPS} times")
    return text


class CompiledRule:
    """One rule, and how it does."""

    def __init__(self, rule: Rule, levels: frozenset[str] = frozenset()) -> None:
        """levels: names that have an order. Raises RequestRefusedError for an expression that is none."""
        import cel  # with its command line it takes .3 s to import: only who has rules pays that

        self.rule = rule
        self.unknown = 0
        """Times that it couldn't be told, mostly since a field was missing: the condition doesn't hold then."""
        self.late = 0
        """Times that it took longer than its budget."""
        self._in_a_row = 0
        try:
            self._program: Program = cel.compile(written(joined(rule.when), levels))
        except ValueError as error:
            raise RequestRefusedError(f"rule {rule.name!r} is no expression: {str(error)[:300]}") from None
        self.variables = frozenset(self._program.variables())

    def holds(self, context: Any) -> bool:
        """Whether its condition is true."""
        if self._in_a_row >= OVERRUNS:
            return False
        began = time.perf_counter()
        try:
            true = self._program.execute(context) is True
        except Exception:  # whatever CEL makes of a missing field, of two types that can't be compared, ...
            self.unknown += 1
            true = False
        taken = 1e3 * (time.perf_counter() - began)
        if taken <= self.rule.budget_ms:
            self._in_a_row = 0
            return true
        self.late += 1
        self._in_a_row += 1
        if self._in_a_row == OVERRUNS:
            log.error(
                "Rule %r isn't asked any more until its set changes: %d times in a row it took longer than its %g ms",
                self.rule.name,
                OVERRUNS,
                self.rule.budget_ms,
            )
        return False


class CompiledSet:
    """A rule set as it is asked."""

    def __init__(self, name: str, rules: RuleSet) -> None:
        """Raises RequestRefusedError for a rule that is none."""
        self.name = name
        self.rules = rules
        levels = frozenset(level for order in rules.levels.values() for level in order)
        self.compiled = [CompiledRule(rule, levels) for rule in rules.rules]
        self.variables = frozenset[str]().union(*(one.variables for one in self.compiled))
        self._functions: dict[str, Callable[..., Any]] = {"at_least": self._at_least, "rank": self._rank}

    def judge(self, facts: Mapping[str, Any]) -> Judgement:
        """The first rule whose condition holds decides. facts: by the names that expressions use."""
        if self.compiled:
            import cel

            known = {name: value for name, value in facts.items() if name in self.variables}
            context = cel.Context(variables=known, functions=self._functions)
            for one in self.compiled:
                if one.holds(context):
                    rule = one.rule
                    return Judgement(rule.then, rule.name, rule.reply or self.rules.reply, rule.changes)
        return Judgement(self.rules.otherwise, None, self.rules.reply, {})

    def _at_least(self, got: object, wanted: object) -> bool:
        """at_least(user.tier, "VIP2"): whether the first is as high as the second, in the order that has both."""
        for order in self.rules.levels.values():
            if wanted in order:
                return got in order and order.index(str(got)) >= order.index(str(wanted))
        return False

    def _rank(self, got: object, wanted: object) -> int:
        """Where the first stands in the order that has the second. Raises ValueError where it isn't in it: then the
        condition can't be told."""
        for order in self.rules.levels.values():
            if wanted in order:
                return order.index(str(got))
        raise ValueError(f"{wanted!r} is no level")
