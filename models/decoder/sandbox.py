"""Where a version's chat template runs: no access beyond the messages, and a bound on all that it does.

A template is a program that comes with a model. Jinja's sandbox keeps it from the interpreter; this one also ends its
loops, recursions and growing strings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

LARGEST: Final = 8_000_000
"""Characters of any string that a template makes."""
LONGEST_S: Final = 1.0
"""Of the thread's processor time, for one rendering."""
STEPS: Final = 50_000
"""Turns of loops and calls of macros, for one rendering."""

FILTERS: Final = frozenset(
    {
        *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape"),
        *("first", "float", "int", "items", "join", "last", "length", "list"),
        *("lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
        *("round", "safe", "select", "selectattr", "sort", "string", "sum", "title"),
        *("tojson", "trim", "unique", "upper"),
    }
)
METHODS: Final = frozenset(
    {
        *("capitalize", "changed", "count", "cycle", "endswith", "find", "get"),
        *("index", "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper", "items"),
        *("join", "keys", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rfind"),
        *("rindex", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title"),
        *("upper", "values"),
    }
)
"""Of strings, lists, dicts and loops: those that don't make more of little."""


class Sandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters = {name: self.filters[name] for name in FILTERS}
        self.filters["tojson"] = _tojson
        self.filters["replace"] = _replaced
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals |= {"_step": self._step, "_concat": self._concat, "raise_exception": _refuse}
        self._steps = 0
        self._until = 0.0

    def begin(self) -> None:
        """The bounds count from here."""
        self._steps, self._until = 0, time.thread_time() + LONGEST_S

    def bounded(self, template: str) -> nodes.Template:
        """The template's tree, with a step in every loop and macro, and strings joined under a bound. Raises
        TemplateSyntaxError."""
        tree = self.parse(template)
        for place in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            step = nodes.Call(nodes.Name("_step", "load"), [], [], None, None)
            place.body.insert(0, nodes.Output([step]))  # type: ignore[attr-defined]
        _replace_concats(tree)
        return tree.set_lineno(1).set_environment(self)  # type: ignore[return-value]

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What jinja joins the output of blocks and macros with."""
        parts = list(parts)
        _bound(sum(map(len, parts)))
        return "".join(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also: only methods that are known to be cheap."""
        return super().is_safe_attribute(obj, attr, value) and (not callable(value) or attr in METHODS)

    def wrap_str_format(self, value: Any) -> Any:
        """Refuses what could be as wide as a format says."""
        if super().wrap_str_format(value) is not None:
            raise SecurityError("a template may not use format()")
        return None

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuses to make much of little."""
        if operator == "**":
            raise SecurityError("a template may not raise to powers")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("a template may not format with %")
        if operator == "*":
            sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
            counts = [int(side) for side in (left, right) if isinstance(side, int | float)]
            if sizes and counts:
                _bound(max(sizes) * max(counts))
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _bound(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Also bounds what methods of strings make."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            name = getattr(__obj, "__name__", "")
            if name == "replace" and len(args) >= 2:
                return _replaced(text, *args, **kwargs)
            if name == "join" and args:
                parts = list(map(str, args[0]))
                _bound(sum(map(len, parts)) + len(text) * len(parts))
                return text.join(parts)
        return super().call(__context, __obj, *args, **kwargs)

    def _step(self) -> str:
        self._steps += 1
        if self._steps > STEPS:
            raise SecurityError(f"a template may take {STEPS:,} steps")
        if self._steps % 64 == 0 and time.thread_time() > self._until:
            raise SecurityError(f"a template may take {LONGEST_S:g} s")
        return ""

    def _concat(self, *parts: Any) -> str:
        return self.concat(map(str, parts))


def _replace_concats(tree: nodes.Node) -> None:
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for name, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, name, _joined(value))
            elif isinstance(value, list):
                setattr(parent, name, [_joined(part) if isinstance(part, nodes.Concat) else part for part in value])


def _joined(concat: nodes.Concat) -> nodes.Call:
    return nodes.Call(nodes.Name("_concat", "load"), concat.nodes, [], None, None, lineno=concat.lineno)


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    text, old, new = str(text), str(old), str(new)
    found = text.count(old) if count < 0 else min(count, text.count(old))
    _bound(len(text) + found * len(new))
    return text.replace(old, new, found)


def _tojson(value: Any, indent: int | None = None) -> str:
    """As Hugging Face's templates expect it: not escaped for HTML."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("a template may indent by 16 at most")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(words: str) -> str:
    """What templates call for messages that they don't take."""
    raise RefusedError(str(words))


class RefusedError(Exception):
    """A template's own words."""


def _bound(characters: int) -> None:
    if characters > LARGEST:
        raise SecurityError(f"a template may make strings of {LARGEST:,} characters")
