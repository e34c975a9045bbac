"""One message of a conversation, as chat templates know it."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True):
    """Who said what."""

    role: str
    """system, user or assistant; a template may know more, and may refuse what it doesn't know."""
    content: str
