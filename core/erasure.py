"""What an erased session is called: its name would be a new trace of it."""

from __future__ import annotations

import hashlib
from typing import Final

ERASED: Final = "session_erased"
"""The kind of the alert that says so."""


def pseudonym(session: str) -> str:
    """What stands for a session where it must not be named. Whoever knows the session can compute it."""
    return f"session-sha256:{hashlib.sha256(session.encode()).hexdigest()}"
