"""Text with names in braces, and what is put in their place: data, never more than text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

ROOTS: Final = ("features", "prediction", "session", "intent")
"""What a name may begin with: {features.mean.value}, {prediction.label}."""
UNKNOWN: Final = "unknown"
"""What stands for a name that has no value yet."""
LONGEST: Final = 200
"""Characters of a value that are shown."""
_NAME: Final = re.compile(r"\{([^{}]*)\}")
_DOTTED: Final = re.compile(rf"({'|'.join(ROOTS)})(\.[^\s{{}}.][^\s{{}}]*)")

Value = str | float | bool | None


def names_in(text: str) -> tuple[str, ...]:
    """The names of a text, each once, in order. Raises ValueError for a name of nothing that is known, and for a brace
    that is none of a name's."""
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    for name in names:
        if not _DOTTED.fullmatch(name):
            roots = ", ".join(f"{{{root}.NAME}}" for root in ROOTS)
            raise ValueError(f"{{{name}}} is no name of anything that is known; there are {roots}")
    if "{" in (rest := _NAME.sub("", text)) or "}" in rest:
        raise ValueError("a brace stands by itself: names are written {features.mean.value}")
    return names


def told_of(root: str, text: str | None) -> bool:
    """Whether a text has a name that begins so."""
    return any(name.startswith(f"{root}.") for name in names_in(text or ""))


def filled(text: str, value_of: Callable[[str], Value]) -> str:
    """The text with values in the places of names. What a value says is never looked into for names again, and has no
    line of its own."""
    return _NAME.sub(lambda found: _shown(value_of(found[1])), text)


def _shown(value: Value) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, float):
        return " ".join(str(value).split())[:LONGEST]
    return f"{value:.6g}"
