"""One message of a conversation, as chat templates know it."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who said what."""

    role: str
    """system, user or assistant; a template may know more, and may refuse what it doesn't know."""
    content: str
    tokens: tuple[int, ...] = ()
    """Of a reply that a decoder of the same tokenizer made: they are taken in place of the content's own, since what
    was sampled needn't be how the tokenizer would cut its text, and KV is reused by equal tokens alone. An end token
    at the end is left to the template."""
